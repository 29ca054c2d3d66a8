//! A running digest over order numbers: it differs when one is lost, doubled, or in another place.

/// Prime, and small enough that no product leaves 63 bits: the same sum is worked out by SQL.
const MODULUS: i64 = 2_147_483_647;
const FACTOR: i64 = 1_000_003;

/// The digest of the orders of one customer, in the order in which they were handled.
///
/// `next = (last * 1000003 + order) mod (2^31 - 1)`, beginning at 0. Exchanging two different numbers always changes it;
/// any other difference goes unseen with a chance of one in two thousand million, and then the count or the sum
/// still tells of most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest(pub i64);

impl Digest {
    /// The digest with one more order.
    #[must_use]
    pub fn then(self, order: i64) -> Self {
        Digest((self.0 * FACTOR + order) % MODULUS)
    }
}

/// The digest of orders handled in this order.
pub fn digest_of(orders: impl IntoIterator<Item = i64>) -> Digest {
    orders.into_iter().fold(Digest::default(), Digest::then)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_doubling_and_order_show() {
        let whole = digest_of([7, 11, 13]);
        for other in [
            vec![7, 11],
            vec![7, 11, 11, 13],
            vec![7, 13, 11],
            vec![11, 7, 13],
            vec![],
        ] {
            assert_ne!(digest_of(other.clone()), whole, "{other:?}");
        }
    }
}

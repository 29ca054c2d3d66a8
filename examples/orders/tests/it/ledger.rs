//! The ledger catches what is done to the tables and to the mailer's file by hand.

#![allow(clippy::unwrap_used)]

use crate::shop::Shop;

const LIMIT: &str = "--limit 300";

/// One run, then each of these by itself would be slow: so each undoes itself before the next.
#[tokio::test]
async fn a_lost_a_doubled_and_a_swapped_effect_are_caught() {
    let shop = Shop::new("tampered");
    shop.orders(LIMIT).ended(0, &[]);
    // Customer 00003 has the orders 5 to 10, of 20.76, 20.76, 19.54, 57.45, 20.96 and 16.99 dollars.
    let whole = "UPDATE totals SET orders = 6, cents = 15646, digest = 0 WHERE customer = '00003'";
    let digest = |orders: &[i64]| orders_ledger::digest_of(orders.iter().copied()).0;
    let lost = digest(&[5, 6, 8, 9, 10]);
    let doubled = digest(&[5, 6, 7, 8, 8, 9, 10]);
    let swapped = digest(&[5, 6, 8, 7, 9, 10]);
    let before = shop.ledger().await;
    assert!(before.is_clean());
    let cases: [(&'static str, i64, [u64; 3], &str); 3] = [
        (
            "UPDATE totals SET orders = 5, cents = 13692 WHERE customer = '00003'",
            lost,
            [1, 0, 0],
            "order 7 is missing",
        ),
        (
            "UPDATE totals SET orders = 7, cents = 21391 WHERE customer = '00003'",
            doubled,
            [0, 1, 0],
            "order 8 was handled twice",
        ),
        (whole, swapped, [0, 0, 1], "order 7 was handled too late"),
    ];
    for (sql, digest, wanted, says) in cases {
        shop.tamper(sql).await;
        shop.set_digest("00003", digest).await;
        let ledger = shop.ledger().await;
        let totals = ledger.groups[0];
        assert_eq!(
            [totals.missing, totals.duplicated, totals.out_of_order.unwrap_or(0)],
            wanted,
            "{:?}",
            ledger.findings
        );
        assert_eq!(ledger.findings, [format!("totals: customer 00003: {says}")]);
        shop.orders(LIMIT).ended(1, &[says]);
    }
    shop.tamper(whole).await;
    shop.set_digest("00003", digest(&[5, 6, 7, 8, 9, 10])).await;
    assert!(shop.ledger().await.is_clean());
}

#[tokio::test]
async fn revenue_and_mail_are_checked_too() {
    let shop = Shop::new("mail");
    shop.orders(LIMIT).ended(0, &[]);
    let mailbox = shop.mailbox();
    let mail = std::fs::read_to_string(&mailbox).unwrap();
    let first = mail.lines().next().unwrap();
    // The same key again is what a receiver drops; another key is a second mail.
    std::fs::write(&mailbox, format!("{mail}{first}\n")).unwrap();
    let ledger = shop.ledger().await;
    assert!(ledger.is_clean());
    assert_eq!((ledger.mail_raw, ledger.mail_distinct), (301, 300));
    std::fs::write(&mailbox, format!("{mail}x{first}\n")).unwrap();
    assert_eq!(shop.ledger().await.groups[2].duplicated, 1);
    std::fs::write(&mailbox, mail.strip_prefix(&format!("{first}\n")).unwrap()).unwrap();
    assert_eq!(shop.ledger().await.groups[2].missing, 1);
    std::fs::write(&mailbox, &mail).unwrap();
    shop.tamper("UPDATE revenue SET orders = orders + 1, cents = cents + 100 WHERE month = '1997-01'")
        .await;
    assert_eq!(shop.ledger().await.groups[1].duplicated, 1);
    shop.tamper("DELETE FROM revenue WHERE month = '1997-01'").await;
    assert!(shop.ledger().await.groups[1].missing > 0);
}

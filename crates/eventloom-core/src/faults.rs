//! Named points where the crash runs end the process, and defects that they plant to prove that they would be seen.
//!
//! Without the feature `faults` every call is an empty inline function and every defect is the constant `false`.
//! With it, two environment variables decide:
//!
//! - `EVENTLOOM_FAILPOINT=name:k` ends the process with SIGABRT the k-th time it comes by `name`;
//! - `EVENTLOOM_DEFECT=name` plants the defect of that name.

/// Every point that exists. The crash run fails when one of them is never reached.
pub const POINTS: &[&str] = &[
    "publish.before_insert",
    "publish.after_insert",
    "publish.before_commit",
    "publish.after_commit",
    "lease.before_keep",
    "lease.after_keep",
    "lease.before_release",
    "take.before_mark",
    "take.after_mark",
    "batch.after_begin",
    "batch.before_claim",
    "batch.after_claim",
    "batch.after_handler",
    "batch.before_record",
    "batch.before_publish",
    "batch.before_advance",
    "batch.before_commit",
    "batch.after_commit",
    "queue.before_lock",
    "queue.before_insert",
    "suspect.before_count",
    "suspect.after_count",
    "hold.before_insert",
    "hold.before_commit",
    "hold.after_commit",
    "drain.before_mark",
    "drain.after_mark",
    "drain.before_remove",
    "drain.before_commit",
    "drain.after_commit",
    "drain.before_fail",
    "letgo.before_lock",
    "letgo.before_look",
    "letgo.before_commit",
    "letgo.after_commit",
    "effect.before_claim",
    "effect.after_claim",
    "effect.after_call",
    "effect.before_commit",
    "effect.after_commit",
    "relay.before_submit",
    "relay.after_submit",
    "relay.before_insert",
    "relay.before_delivery",
    "relay.after_delivery",
    "relay.before_commit",
    "relay.after_commit",
    "prune.before_delete",
    "prune.before_commit",
    "prune.after_commit",
    "redrive.before_commit",
    "redrive.after_commit",
    "migrate.before_step",
    "migrate.after_step",
];

/// Every defect that can be planted.
pub const DEFECTS: &[&str] = &[
    "inbox_in_own_transaction",
    "cursor_past_unfinished",
    "no_epoch_check",
    "two_tasks_on_one_key",
    "attempts_lost_at_restart",
    "prune_past_reader",
    "let_go_in_one_statement",
    "held_asked_once_a_batch",
    "lease_renewed_without_epoch",
    "two_suspects_at_a_time",
    "claim_without_inbox",
    "effect_result_not_stored",
    "horizon_ignored",
    "take_without_bump",
    "queue_without_lock",
    "advance_before_confirmation",
    "refused_counted_as_confirmed",
    "successor_after_unknown",
    "delivery_id_changed_on_resend",
    "relay_takes_foreign_rows",
    "relay_marks_ignored",
];

#[cfg(feature = "faults")]
mod on {
    use std::sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    };

    static ARMED: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let value = std::env::var("EVENTLOOM_FAILPOINT").ok()?;
        let (name, k) = value.rsplit_once(':')?;
        Some((name.to_owned(), k.parse().ok()?))
    });
    static PASSED: AtomicU64 = AtomicU64::new(0);
    static PLANTED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("EVENTLOOM_DEFECT").ok());

    pub(super) fn point(name: &str) {
        debug_assert!(super::POINTS.contains(&name), "unregistered failpoint {name}");
        if let Some((armed, k)) = &*ARMED
            && armed == name
            && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *k
        {
            eprintln!("failpoint {name}:{k}: the process ends here");
            std::process::abort();
        }
    }

    pub(super) fn defect(name: &str) -> bool {
        debug_assert!(super::DEFECTS.contains(&name), "unregistered defect {name}");
        PLANTED.as_deref() == Some(name)
    }
}

/// A place where the process may be told to end.
#[inline(always)]
pub fn point(name: &'static str) {
    #[cfg(feature = "faults")]
    on::point(name);
    #[cfg(not(feature = "faults"))]
    let _ = name;
}

/// Whether a defect is planted: always `false` without the feature.
#[inline(always)]
#[must_use]
pub fn defect(name: &'static str) -> bool {
    #[cfg(feature = "faults")]
    return on::defect(name);
    #[cfg(not(feature = "faults"))]
    {
        let _ = name;
        false
    }
}

//! Every case of the engine's suite, by topic; the list here is what backends get.

mod calling;
mod databases;
mod delivery;
mod failing;
mod limits;
mod operating;
mod relay;
mod relaying;
mod same_id;
mod sharing;
mod trouble;

use crate::store::{Case, Failed, Fixture, Report, run_case, run_cases};
use std::future::Future;

/// Hands the list to another macro: `engine_cases!([path of the macro] what it gets before the list)`.
#[doc(hidden)]
#[macro_export]
macro_rules! engine_cases {
    ([$($then:tt)+] $($given:tt)*) => {
        $($then)+! {
            $($given)*
            delivery:
                each_event_takes_effect_once_in_order
                consumers_have_their_own_effects
                a_logical_id_takes_effect_once
                redelivery_of_everything_changes_nothing
                what_a_handler_publishes_is_caused
                results_are_kept
                only_topics_of_the_consumer_are_delivered
                types_without_a_handler_are_acknowledged
                a_batch_reads_its_own_effects_once
                rows_of_other_programs_are_read;
            failing:
                a_transient_failure_is_tried_again_in_order
                a_permanent_failure_is_dead_at_once
                attempts_run_out
                a_parked_key_waits_and_the_others_flow
                a_skipped_message_lets_its_key_flow
                a_blocked_lane_waits
                unkeyed_messages_are_set_aside_alone
                a_panic_is_a_failure
                a_hanging_handler_is_a_failure
                an_aborted_transaction_is_a_failure
                a_conflict_that_does_not_pass_is_a_failure
                what_cannot_be_decoded_is_dead_with_its_bytes
                a_decoder_that_panics_is_a_failure
                types_without_a_handler_are_dead_by_choice
                many_poisons_in_one_batch
                a_failure_undoes_what_was_published
                an_outage_burns_no_attempts;
            calling:
                a_call_is_made_once_and_in_order
                a_failed_call_is_made_again_under_its_key
                a_logical_id_is_called_once
                redelivery_calls_nobody
                a_dead_call_waits_and_is_sent_again
                keys_are_called_in_parallel
                a_blocked_lane_calls_nobody_else
                types_without_a_handler_end_no_outage;
            same_id:
                a_second_key_is_not_held_by_a_dead_message
                a_second_key_is_not_held_by_a_dead_call
                what_queues_is_handled_once_under_another_key
                what_queues_is_called_once_under_another_key
                a_call_of_a_deleted_letter_is_open
                both_fail_beside_each_other;
            operating:
                one_letter_is_sent_again
                a_key_is_sent_again_in_order
                everything_is_sent_again
                a_deleted_letter_lets_its_key_flow
                a_paused_consumer_waits
                a_paused_consumer_tries_nothing_again
                a_reset_consumer_reads_again
                a_reset_that_forgets_repeats
                a_dropped_consumer_stops
                a_new_group_begins_where_it_says
                health_tells_how_it_is;
            sharing:
                two_instances_share_and_nothing_is_doubled
                leaving_hands_over_with_everything_held
                an_instance_that_dies_is_succeeded
                a_key_held_by_another_owner_keeps_its_order
                what_killed_its_process_is_set_aside
                innocents_beside_a_killer_are_handled
                shutdown_finishes_what_runs
                a_busy_pool_costs_no_lease
                handlers_as_slow_as_allowed_get_through;
            relaying:
                everything_arrives_in_order
                one_of_a_key_at_a_time_where_the_broker_keeps_no_order
                what_may_have_arrived_is_sent_again_under_its_id
                a_refused_message_is_dead_and_its_key_waits
                a_blocked_topic_waits_alone
                a_broker_that_is_down_is_waited_for
                an_outage_burns_no_attempt_of_what_is_held
                what_only_the_broker_chokes_on_is_set_aside
                two_relays_share_and_a_dead_one_is_succeeded
                only_its_topics_are_relayed
                what_is_too_large_is_held_and_not_sent
                a_duplicate_of_what_is_held_counts_for_nothing
                who_waits_behind_others_is_not_blamed
                a_message_to_blame_makes_no_outage;
            databases:
                another_database_takes_it_in_once
                databases_that_relay_to_each_other_do_not_loop
                a_database_is_not_its_own_broker
                a_broker_that_was_restored_raises_an_alarm
                a_broker_that_goes_back_while_it_is_sent_to_raises_an_alarm
                a_database_that_has_gone_back_takes_nothing
                a_source_that_was_restored_raises_an_alarm
                a_former_owner_is_refused_by_the_broker;
            trouble:
                a_silent_look_at_the_log_is_given_up
                a_silent_transaction_is_given_up
                a_silent_look_at_what_is_held_is_given_up
                calls_run_ahead_of_their_results_so_far
                results_wait_for_a_store_that_is_away
                a_lane_that_was_lost_costs_others_no_call
                a_slow_store_costs_no_call_its_time
                a_panic_ends_no_renewal
                a_store_that_flaps_burns_no_attempts
                a_store_that_flaps_burns_no_attempts_of_what_is_held;
            limits:
                what_cannot_work_is_refused_at_start
                an_explicit_number_that_the_pool_cannot_carry_is_refused
                numbers_that_the_pool_cannot_carry_together_are_refused
                the_default_leaves_a_connection_free
                held_limits_stop_the_lane_and_nothing_is_lost
                a_lane_at_its_limit_stops_alone
                calls_that_run_are_finished_where_no_more_may_be_held;
        }
    };
}

/// One `#[test]` of each case, in a module of each topic.
#[macro_export]
macro_rules! engine_conformance {
    ($fixture:expr) => {
        $crate::engine_cases! { [$crate::suite_tests] [$crate::engine::test, $fixture] }
    };
}

fn cases<F: Fixture>() -> Vec<Case<F>> {
    crate::engine_cases! { [table] }
}

const NAMES: &[&str] = crate::engine_cases! { [names] };

/// Names of all cases.
pub fn case_names() -> &'static [&'static str] {
    NAMES
}

/// Runs every case, one after the other. `fixture` makes one fixture for each.
pub async fn run_all<F: Fixture>(fixture: impl AsyncFnMut() -> F) -> Report {
    run_cases(cases::<F>(), fixture).await
}

/// Runs a case as the body of a test, in a runtime of its own. Returns when the fixture is not available.
///
/// # Panics
/// When the case fails: that is how a test does.
pub fn test<F: Fixture>(name: &str, fixture: impl Future<Output = Option<F>>) {
    run_case(name, fixture, async |fixture: &F| {
        match cases::<F>().into_iter().find(|case| case.name == name) {
            Some(case) => (case.run)(fixture).await,
            None => Err(Failed::new(format!("there is no case {name:?}"))),
        }
    });
}

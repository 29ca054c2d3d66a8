//! Every case of the suite, by topic; the list here is what backends get.

mod append;
mod attempts;
mod claim;
mod doze;
mod due;
mod effects;
mod fence;
mod held;
mod horizon;
mod keep;
mod keys;
mod lanes;
mod let_go;
mod letters;
mod once;
mod prune;
mod read;
mod readers;
mod redrive;
mod register;
mod reset;
mod takeover;
mod transaction;
mod zombie;

use super::{fixture::Fixture, run::Case};

/// Hands the list to another macro: `store_cases!([path of the macro] what it gets before the list)`.
#[doc(hidden)]
#[macro_export]
macro_rules! store_cases {
    ([$($then:tt)+] $($given:tt)*) => {
        $($then)+! {
            $($given)*
            transaction:
                a_store_tells_what_it_is
                a_savepoint_undoes_what_came_after_it
                setting_the_savepoint_again_moves_it
                a_savepoint_goes_with_its_transaction
                a_savepoint_gives_locks_back
                dropping_rolls_back
                trouble_is_found_behind_an_error;
            append:
                keeps_the_order
                nothing_is_appended_by_an_empty_list
                thousands_are_one_statement
                every_attribute_is_kept
                what_is_not_given_stays_away
                payloads_are_kept_byte_for_byte
                the_largest_payload_is_kept
                rolled_back_rows_never_appear
                publishers_at_once_all_arrive
                one_publisher_keeps_its_order
                the_same_id_can_be_published_again
                publishing_over_a_limit_is_refused
                a_plain_insert_is_an_event;
            read:
                an_empty_log_is_read_to_its_horizon
                pages_are_bounded_by_rows
                pages_are_bounded_by_bytes
                holes_are_passed
                another_process_reads_the_same
                a_time_is_found;
            horizon:
                only_what_is_committed_is_read
                an_open_writer_holds_back_what_follows
                an_open_transaction_without_rows_holds_nothing_back
                a_reader_beside_writers_misses_nothing;
            lanes:
                a_lane_is_the_hash_of_its_key
                a_lane_is_the_log_without_the_others
                a_lane_is_read_between_its_bounds;
            doze:
                a_row_that_is_there_is_not_slept_through
                it_ends_by_itself
                a_commit_wakes
                a_commit_wakes_all
                a_writer_in_flight_is_not_slept_through;
            register:
                earliest_begins_before_the_first_row
                latest_begins_after_what_was_handed_out
                latest_is_not_held_back_by_a_writer
                a_position_is_where_it_begins
                a_time_is_where_it_begins
                once_is_enough
                many_at_once_make_one
                missing_lanes_are_added
                earliest_begins_where_the_log_was_pruned_to
                a_time_before_the_pruned_begins_there
                a_position_below_the_pruned_is_refused;
            keep:
                the_first_takes_all
                a_renewal_takes_nothing_anew
                two_share
                three_share
                many_at_once_share
                readers_do_not_share
                leaving_hands_over_at_once
                leaving_ends_the_lease_of_all_lanes
                releasing_what_is_lost_does_nothing
                a_late_release_does_nothing
                a_reader_that_is_not_there_is_dropped;
            takeover:
                a_live_owner_keeps_its_lanes
                lanes_of_the_expired_are_taken
                a_lapsed_lease_is_not_revived
                who_lapsed_comes_back_to_its_share
                a_lane_it_does_not_know_of_is_taken_anew
                all_are_taken_anew_by_who_knows_of_none
                what_was_being_done_is_told
                what_is_held_is_told;
            fence:
                an_owner_moves_its_lanes
                lanes_are_given_in_any_order
                a_step_is_taken_once
                another_epoch_is_fenced
                several_lanes_move_or_none
                nothing_to_move_is_nothing_to_fence
                the_end_of_a_batch_only_rises
                lanes_are_locked_in_their_order;
            zombie:
                who_released_a_lane_is_fenced_by_the_next
                a_zombie_commits_nothing
                a_thawed_owner_does_nothing
                a_lane_that_is_locked_is_passed_over
                a_fence_holds_until_its_transaction_ends
                a_lapsed_lane_in_use_is_lost;
            claim:
                a_second_delivery_is_known
                consumers_claim_apart
                ids_are_any_text
                a_thousand_are_one_statement
                rolling_back_undoes_a_claim
                a_claim_is_taken_back
                results_are_kept
                of_two_at_once_one_waits
                claims_are_forgotten_after_their_window
                batches_that_overlap_do_not_deadlock;
            effects:
                a_call_is_made_once
                a_claim_outlives_its_lease_until_the_lane_is_taken
                the_same_lane_asks_again
                another_lane_is_told_that_it_is_in_progress
                a_claim_ends_with_its_epoch
                a_claim_that_was_rolled_back_was_never_made
                a_claim_that_was_given_up_is_open
                lanes_ask_together
                consumers_call_apart
                only_finished_calls_are_forgotten;
            once:
                work_is_done_once
                keys_are_no_ids_of_a_consumer
                keys_are_forgotten_after_their_window
                another_request_under_the_key_is_a_mismatch
                scopes_are_apart
                rolled_back_work_is_done_again
                what_is_being_worked_on_is_told
                being_told_leaves_the_transaction_usable;
            held:
                a_message_is_kept_byte_for_byte
                a_message_is_held_once
                the_first_row_of_an_id_is_held
                a_batch_is_told_what_is_held
                asking_sees_the_own_transaction
                a_queue_is_in_the_order_of_the_log
                what_is_not_held_is_not_found;
            attempts:
                a_drain_marks_what_it_takes
                removing_counts
                attempts_survive_a_rollback
                an_attempt_is_taken_back
                attempts_of_held_ones_survive_too;
            keys:
                locking_a_key_again_finds_it
                only_keys_that_are_there_are_shared
                how_much_is_held_is_told
                a_lane_tells_whether_it_holds
                keys_of_a_lane_come_in_pages;
            due:
                heads_and_loners_are_due
                a_keyed_loner_heads_no_queue
                only_lanes_that_are_asked_for_are_due
                the_next_due_time_is_told
                a_failed_one_is_tried_again
                a_dead_one_waits_for_a_human
                putting_off_burns_nothing
                putting_off_a_queue_puts_off_its_head;
            let_go:
                an_empty_key_is_free
                loners_do_not_hold_their_key
                the_next_head_wakes
                a_head_with_a_time_keeps_it
                a_dead_head_stays_dead
                letting_go_waits_for_who_queues
                queueing_waits_for_who_lets_go
                letting_go_waits_for_who_holds
                holding_waits_for_who_lets_go
                two_that_hold_wait_for_each_other
                two_that_queue_do_not_wait;
            letters:
                a_letter_tells_all
                failures_have_a_history
                letters_are_filtered
                a_hundred_letters_are_a_page;
            redrive:
                one_is_sent_again
                one_in_the_middle_keeps_its_place
                a_key_is_sent_again_in_order
                all_are_sent_again_in_order
                a_head_that_came_later_is_due_too
                a_deleted_head_lets_its_queue_flow
                deleting_the_last_lets_the_key_go
                waiting_ones_are_not_deleted;
            readers:
                readers_are_listed_by_name
                a_new_reader_has_nothing_to_tell
                lag_is_what_lies_above_the_cursors
                what_is_held_is_counted
                the_error_of_what_waits_is_told
                owners_are_told_while_they_live
                a_log_tells_where_it_stands
                who_holds_the_horizon_back_is_told;
            reset:
                a_paused_reader_keeps_its_lanes
                a_dropped_reader_leaves_nothing
                what_a_drop_has_left_is_not_the_next_ones
                a_reset_puts_every_lane_there
                a_reset_raises_every_epoch
                a_reset_forgets_when_asked_to
                a_reset_below_the_pruned_is_refused;
            prune:
                nothing_goes_without_a_reader
                nothing_goes_above_the_slowest_lane
                nothing_goes_above_the_slowest_reader
                young_rows_are_kept
                with_nothing_to_keep_no_time_counts
                it_goes_in_bounded_steps
                a_full_step_that_ends_it_is_the_last
                who_found_nothing_is_out_of_the_way
                reading_over_the_gap_is_refused
                many_pruners_are_one;
        }
    };
}

/// One `#[test]` of each case, in a module of each topic. See the [module](crate::store) for how it is used.
#[macro_export]
macro_rules! store_conformance {
    ($fixture:expr) => {
        $crate::store_cases! { [$crate::suite_tests] [$crate::store::test, $fixture] }
    };
}

/// Every case, for a fixture of this kind.
pub(super) fn cases<F: Fixture>() -> Vec<Case<F>> {
    crate::store_cases! { [table] }
}

/// Names of all cases, in the order in which they run.
pub(super) const NAMES: &[&str] = crate::store_cases! { [names] };

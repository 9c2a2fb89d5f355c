//! The list of all cases.

/// Makes every case a named test of what `$make` builds, such as `remote_memory::exit_code_is_reported`.
///
/// `$make` is an expression for a future of a [`Subject`](crate::subject::Subject); it is evaluated
/// anew for each case.
#[macro_export]
macro_rules! conformance_suite {
    ($name:ident, $make:expr) => {
        $crate::conformance_suite! { $name, $make;
            exit:
                exit_code_is_reported,
                death_by_a_signal_is_told_by_number_and_name,
                usage_is_reported_with_the_exit,
                numbers_begin_with_one_and_the_close_is_last,
                exited_and_closed_come_exactly_once,
                late_output_of_a_descendant_comes_before_the_close;
            output:
                stdout_keeps_its_order,
                stdout_and_stderr_are_separate,
                big_output_arrives_complete_and_in_order,
                a_late_follower_is_replayed_what_is_retained,
                a_follower_from_now_sees_only_what_comes;
            pace:
                a_follower_that_does_not_read_pauses_the_process,
                a_wait_for_a_paused_process_is_over_when_its_time_is,
                a_paused_process_can_be_terminated,
                a_paused_process_holds_up_no_other,
                a_free_follower_does_not_hold_up_the_process,
                a_dropped_follower_lets_the_process_go_on;
            input:
                a_write_reaches_stdin,
                close_stdin_ends_cat,
                every_byte_survives_both_ways,
                a_repeated_write_id_is_written_once,
                writes_keep_the_order_in_which_they_were_called,
                a_large_write_arrives_whole,
                a_process_without_stdin_cannot_be_written_to,
                a_closed_stdin_takes_nothing_more,
                a_write_after_terminate_fails,
                writes_that_wait_hold_up_nobody;
            terminal:
                a_terminal_echoes_what_is_written,
                a_terminal_is_one_stream_and_a_controlling_one,
                a_terminal_begins_with_its_size,
                a_resize_is_told_to_the_process,
                only_a_terminal_has_a_size,
                a_size_without_rows_or_columns_is_refused,
                close_stdin_is_the_end_of_file_on_a_terminal,
                control_c_interrupts_the_foreground,
                death_by_a_signal_is_told_on_a_terminal_too;
            ending:
                terminate_kills_the_whole_tree,
                terminate_kills_the_whole_tree_of_a_terminal,
                terminate_drains_what_was_written,
                terminate_tells_whether_it_was_running,
                a_graceful_end_lets_a_handler_run,
                a_graceful_end_kills_when_the_time_is_up,
                interrupt_reaches_the_group,
                every_signal_is_delivered,
                a_stopped_process_goes_on_when_it_is_told_to,
                a_stopped_process_can_be_ended_gracefully,
                a_signal_after_the_end_does_nothing,
                an_end_is_told_although_signals_are_under_way,
                terminating_what_ends_by_itself_loses_no_status;
            waiting:
                exited_and_closed_are_waited_for_apart,
                a_wait_is_over_when_its_time_is,
                a_wait_after_the_end_is_over_at_once,
                a_wait_needs_no_follower;
            reading:
                reading_does_not_consume,
                without_a_budget_the_next_number_is_the_processes,
                with_a_budget_the_next_number_is_the_pages,
                a_budget_splits_no_chunk_and_always_gives_one,
                a_long_poll_wakes_for_output,
                a_long_poll_wakes_for_the_end,
                a_poll_that_has_seen_the_exit_waits_for_the_close,
                a_long_poll_without_news_is_empty,
                a_small_snapshot_is_everything,
                a_large_snapshot_is_head_and_tail;
            limits:
                the_wall_limit_kills_the_tree,
                the_idle_limit_kills_a_silent_process,
                output_defers_the_idle_limit,
                input_defers_the_idle_limit,
                the_limit_of_open_files_is_the_processes,
                the_limit_of_a_files_size_is_a_signal,
                the_limit_of_processor_time_is_a_signal,
                limits_that_are_not_reached_change_nothing;
            environment:
                the_environment_is_exactly_the_given_map,
                a_policy_inherits_all_but_secrets,
                a_policy_inherits_the_core_or_nothing,
                a_policy_filters_by_patterns,
                who_asked_is_exported,
                arg0_only_renames,
                the_directory_is_entered,
                a_program_is_looked_up_in_the_childs_path,
                the_host_is_described;
            start:
                a_missing_program_is_refused,
                a_program_that_is_not_executable_is_refused,
                a_missing_directory_is_refused,
                a_nul_is_refused,
                a_command_without_a_program_is_refused,
                a_foreign_directory_is_refused,
                a_relative_program_begins_at_the_directory,
                an_id_in_use_is_refused_where_ids_are_kept;
            lifetime:
                dropping_the_last_handle_kills_the_tree,
                a_stream_outlives_the_handle_and_tells_the_end,
                dropping_the_handle_kills_what_an_exited_process_left,
                dropping_a_start_leaves_nothing_running,
                thirty_two_run_at_once,
                a_command_is_over_before_anybody_looks;
        }
    };
    ($name:ident, $make:expr; $($family:ident: $($case:ident),+;)+) => {
        mod $name {
            use super::*;

            $($(
                #[tokio::test]
                async fn $case() {
                    $crate::cases::$family::$case(&$make.await).await;
                }
            )+)+
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_listed() {
        let list = include_str!("suite.rs");
        let families = [
            include_str!("cases/exit.rs"),
            include_str!("cases/output.rs"),
            include_str!("cases/pace.rs"),
            include_str!("cases/input.rs"),
            include_str!("cases/terminal.rs"),
            include_str!("cases/ending.rs"),
            include_str!("cases/waiting.rs"),
            include_str!("cases/reading.rs"),
            include_str!("cases/limits.rs"),
            include_str!("cases/environment.rs"),
            include_str!("cases/start.rs"),
            include_str!("cases/lifetime.rs"),
        ];
        for line in families.iter().flat_map(|family| family.lines()) {
            if let Some(rest) = line.strip_prefix("pub async fn ") {
                let name = rest.split('(').next().unwrap_or(rest);
                let listed = list
                    .lines()
                    .any(|line| line.trim().trim_end_matches([',', ';']) == name);
                assert!(listed, "{name}");
            }
        }
    }
}

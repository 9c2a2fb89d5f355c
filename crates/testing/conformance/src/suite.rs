//! List of all cases.

/// Makes every case a named test of the subject that `$make` builds, such as
/// `remote_memory::exit_code_is_reported`.
///
/// `$make` is an expression for a future of a [`Subject`](crate::subject::Subject), evaluated once
/// per case.
#[macro_export]
macro_rules! conformance_suite {
    ($name:ident, $make:expr) => {
        mod $name {
            use super::*;

            $crate::transport_families! { case_tests, $make }
            $crate::host_families! { case_tests, $make }
        }
    };
}

/// Makes every family of cases that depends on the transport a test of a shared host, such as
/// `remote_relay::backpressure`. The cases of a family run concurrently, each in its own session.
///
/// `$start` is an expression for a future of the host, such as a running server. `$connect` is a
/// function that connects a [`Subject`](crate::subject::Subject) to a reference of it.
#[macro_export]
macro_rules! transport_suite {
    ($name:ident, $start:expr, $connect:expr) => {
        mod $name {
            use super::*;

            $crate::transport_families! { family_tests, $start, $connect }
        }
    };
}

/// Passes the families to `$tests` whose cases depend on the transport: large and many messages,
/// streams, flow control, request order, and what ends with a connection.
#[doc(hidden)]
#[macro_export]
macro_rules! transport_families {
    ($tests:ident, $($subject:expr),+) => {
        $crate::$tests! { $($subject),+;
            exit:
                exit_code_is_reported,
                signal_death_reports_number_and_name,
                resource_usage_is_reported_with_the_exit,
                sequence_numbers_start_at_one_and_close_is_last,
                exited_and_closed_are_sent_exactly_once,
                descendant_output_after_exit_precedes_close,
                exited_and_closed_can_be_awaited_separately,
                wait_times_out,
                wait_after_exit_returns_immediately,
                wait_works_without_a_follower;
            output:
                stdout_keeps_its_order,
                stdout_and_stderr_are_separate,
                big_output_arrives_complete_and_in_order,
                late_follower_receives_retained_output,
                follower_from_now_sees_only_new_output;
            backpressure:
                stalled_follower_pauses_the_process,
                wait_for_a_paused_process_times_out,
                paused_process_can_be_terminated,
                paused_process_does_not_block_others,
                unthrottled_follower_does_not_block_the_process,
                dropping_a_follower_resumes_the_process;
            stdin:
                write_reaches_stdin,
                close_stdin_ends_cat,
                stdin_and_stdout_preserve_every_byte,
                repeated_write_id_is_written_once,
                writes_are_delivered_in_call_order,
                large_write_arrives_complete,
                write_without_stdin_is_refused,
                write_after_close_stdin_is_refused,
                a_write_after_terminate_fails,
                blocked_writes_do_not_block_other_calls;
            read_output:
                read_does_not_consume_output,
                read_without_byte_limit_returns_the_process_next_seq,
                read_with_byte_limit_returns_the_page_next_seq,
                byte_limit_never_splits_a_chunk_and_returns_at_least_one,
                long_poll_wakes_on_output,
                long_poll_wakes_on_exit,
                poll_after_exit_waits_for_close,
                long_poll_timeout_returns_an_empty_page,
                small_snapshot_is_complete,
                large_snapshot_keeps_head_and_tail;
            communicate:
                communicate_passes_eight_mebibytes_through_cat,
                communicate_does_not_deadlock_if_the_child_writes_first,
                communicate_works_if_the_child_never_reads,
                communicate_works_if_the_child_closes_stdin_early,
                communicate_works_without_input,
                communicate_works_on_a_terminal,
                communicate_keeps_head_and_tail_up_to_the_cap,
                communicate_times_out,
                communicate_reports_a_concurrent_terminate;
            process_lifetime:
                dropping_the_last_handle_kills_the_tree,
                event_stream_outlives_the_handle_and_reports_the_exit,
                dropping_the_handle_kills_descendants_of_an_exited_process,
                cancelled_start_leaves_nothing_running,
                thirty_two_processes_run_concurrently,
                short_command_is_reported_after_it_ended;
            read_file:
                file_round_trip_preserves_every_byte_value,
                file_round_trip_preserves_an_empty_file,
                file_round_trip_preserves_three_mebibytes,
                file_larger_than_a_message_is_read_completely,
                missing_file_is_not_found,
                only_regular_files_are_read,
                file_above_the_size_limit_is_refused,
                file_used_as_a_directory_is_an_error,
                symlink_is_followed_when_reading,
                unreadable_file_is_invalid,
                files_are_read_concurrently,
                content_of_several_reads_can_be_held;
            walk:
                walk_is_breadth_first_and_sorted_by_name,
                walk_respects_the_depth_limit,
                walk_respects_the_entry_limit,
                walk_respects_the_directory_limit,
                invalid_walk_limits_are_refused,
                walk_can_skip_the_content_of_hidden_directories,
                walk_root_must_be_a_directory,
                walk_skips_symlinks_and_fifos,
                walk_can_follow_directory_symlinks_once,
                walk_reports_unreadable_directories_and_continues,
                walk_returns_usable_paths_for_non_utf8_names,
                walk_response_size_is_bounded;
            file_handle:
                blocks_are_read_at_any_offset,
                short_block_read_reports_end_of_file,
                open_for_replace_creates_or_truncates,
                blocks_are_written_at_any_offset,
                holes_read_as_zeros,
                open_for_update_keeps_unwritten_content,
                invalid_arguments_leave_the_handle_open,
                handle_allows_only_its_open_mode,
                only_regular_files_are_opened,
                many_handles_are_open_concurrently,
                handle_stays_open_until_its_last_clone_is_dropped,
                pending_block_operation_keeps_the_handle_open,
                cancelled_open_leaves_no_handle_open,
                file_is_streamed_completely;
            ordering:
                the_last_of_many_writes_wins,
                await_order_does_not_change_write_order,
                mixed_changes_apply_in_call_order,
                reads_see_changes_answered_before,
                unawaited_change_does_not_block_later_calls;
            tunnels:
                tunnel_keeps_a_half_closed_connection,
                large_transfers_through_a_tunnel_are_complete,
                dropped_tunnel_resets_its_connection,
                tunnel_dropped_after_its_shutdown_delivers_everything,
                reset_connection_is_a_read_error_of_its_tunnel,
                tunnel_to_a_closed_port_is_an_error,
                many_tunnels_are_open_concurrently,
                listener_accepts_connections_until_it_is_dropped,
                listening_ports_are_listed;
            watch:
                watch_reports_changes_of_a_file,
                watch_reports_both_names_of_a_rename,
                watch_reports_changes_made_through_the_environment,
                watch_covers_new_directories_and_their_content,
                watch_reports_moves_into_and_out_of_the_tree,
                non_recursive_watch_covers_only_direct_entries,
                single_file_can_be_watched,
                watch_through_a_symlink_reports_real_paths,
                burst_is_reported_completely_or_as_overflow,
                stalled_watcher_is_told_about_lost_changes,
                two_watches_of_one_directory_both_report,
                dropping_a_watch_ends_it,
                watch_reports_removal_of_its_root,
                missing_path_cannot_be_watched;
            search:
                search_reports_path_and_line_of_each_match,
                single_file_can_be_searched,
                plain_text_is_not_a_regular_expression,
                search_can_ignore_case,
                search_returns_context_lines,
                glob_selects_the_searched_files,
                invalid_pattern_is_refused,
                search_respects_the_match_limit,
                search_respects_ignore_files,
                special_files_do_not_block_a_search,
                non_utf8_and_long_lines_are_shown_truncated,
                search_response_size_is_bounded,
                search_root_must_exist;
            http_stream:
                streamed_body_arrives_as_it_is_sent,
                an_empty_body_can_be_streamed,
                large_streamed_body_arrives_complete,
                bodies_are_streamed_concurrently,
                truncated_streamed_body_is_an_error,
                streamed_body_times_out,
                missing_response_fails_the_streamed_request,
                unread_body_does_not_block_other_calls,
                dropping_a_body_ends_the_download,
                dropping_a_stalled_body_ends_the_download;
        }
    };
}

/// Passes the families to `$tests` whose cases depend only on the host behind the transport.
#[doc(hidden)]
#[macro_export]
macro_rules! host_families {
    ($tests:ident, $($subject:expr),+) => {
        $crate::$tests! { $($subject),+;
            terminal:
                terminal_echoes_input,
                terminal_is_one_stream_and_the_controlling_terminal,
                terminal_starts_with_the_requested_size,
                resize_is_delivered_to_the_process,
                resize_without_a_terminal_is_refused,
                size_without_rows_or_columns_is_refused,
                close_stdin_sends_end_of_file_on_a_terminal,
                control_c_interrupts_the_foreground_process,
                signal_death_is_reported_on_a_terminal;
            termination:
                terminate_kills_the_whole_tree,
                terminate_kills_the_whole_tree_of_a_terminal,
                terminate_delivers_output_already_written,
                terminate_reports_whether_it_was_running,
                graceful_terminate_runs_the_signal_handler,
                graceful_terminate_kills_after_the_grace_period,
                interrupt_reaches_the_process_group,
                every_signal_is_delivered,
                stopped_process_resumes_on_sigcont,
                stopped_process_can_be_terminated_gracefully,
                signal_after_exit_does_nothing,
                exit_is_reported_while_signals_are_in_flight,
                terminate_racing_with_exit_keeps_the_status;
            collect:
                collect_window_ends_with_the_process,
                collect_window_ends_at_its_timeout,
                output_after_a_window_is_only_in_the_next_window,
                collect_window_without_timeout_returns_pending_output,
                capped_windows_return_every_byte_once_and_one_exit,
                collect_windows_work_on_a_terminal,
                exit_is_reported_while_a_descendant_holds_the_output,
                output_dropped_before_a_window_is_counted;
            process_limits:
                wall_time_limit_kills_the_tree,
                idle_limit_kills_a_silent_process,
                output_resets_the_idle_limit,
                input_resets_the_idle_limit,
                open_file_limit_applies_to_the_process,
                file_size_limit_is_reported_as_a_signal,
                cpu_time_limit_is_reported_as_a_signal,
                limits_that_are_not_reached_have_no_effect;
            environment:
                environment_is_exactly_the_given_map,
                env_policy_inherits_all_but_secrets,
                env_policy_inherits_the_core_or_nothing,
                env_policy_filters_by_pattern,
                thread_and_tool_call_ids_are_exported,
                arg0_changes_only_the_name,
                command_starts_in_its_working_directory,
                program_is_looked_up_in_the_childs_path,
                environment_info_describes_the_host;
            start:
                missing_program_is_refused,
                non_executable_program_is_refused,
                missing_working_directory_is_refused,
                nul_byte_in_a_command_is_refused,
                command_without_a_program_is_refused,
                working_directory_of_another_host_is_refused,
                relative_program_is_resolved_from_the_working_directory,
                id_in_use_is_refused_where_ids_are_tracked;
            write_file:
                write_creates_and_truncates,
                parents_are_created_only_on_request,
                directory_cannot_be_written,
                write_to_a_fifo_does_not_block,
                symlink_is_followed_when_writing,
                new_file_mode_follows_the_umask,
                requested_mode_ignores_the_umask,
                rewriting_a_file_keeps_its_mode,
                atomic_write_keeps_old_content_for_open_handles,
                atomic_write_follows_a_symlink,
                failed_atomic_write_changes_nothing,
                atomic_write_shows_readers_old_or_new_content,
                write_ignores_the_data_field_of_the_request;
            nofollow:
                nofollow_accepts_paths_without_symlinks,
                nofollow_rejects_a_final_symlink,
                nofollow_rejects_a_symlink_in_a_parent,
                nofollow_reports_missing_paths_as_missing,
                nofollow_opens_only_regular_files,
                nofollow_rejects_recursive_remove;
            metadata:
                metadata_reports_file_size_and_times,
                metadata_identifies_a_directory,
                metadata_reports_a_fifo_as_neither_file_nor_directory,
                metadata_follows_a_symlink_and_reports_it,
                metadata_of_a_missing_path_is_not_found,
                canonicalize_resolves_symlinks,
                canonicalize_of_a_dangling_path_fails;
            directory:
                create_directory_creates_parents,
                create_directory_fails_below_a_file,
                create_directory_without_recursion_needs_its_parent,
                entries_are_listed_with_their_type,
                non_utf8_names_are_listed_lossily,
                listing_a_non_directory_fails,
                directory_above_the_entry_limit_is_refused;
            remove:
                remove_works_for_every_file_type,
                remove_does_not_touch_a_symlink_target,
                removing_a_missing_path_succeeds_unless_force_is_false,
                non_recursive_remove_needs_an_empty_directory,
                deep_tree_is_removed;
            copy:
                copy_preserves_permission_bits,
                copy_onto_itself_is_invalid_and_keeps_the_content,
                symlink_is_copied_as_a_symlink,
                directory_is_copied_only_with_recursive,
                directory_copy_merges_into_an_existing_directory,
                directory_copy_creates_parents_of_the_target,
                directory_is_not_copied_into_itself,
                fifo_is_not_copied,
                copy_with_missing_or_mismatched_ends_fails;
            rename:
                rename_works_for_every_file_type,
                rename_does_not_replace_by_default,
                rename_replaces_on_request,
                rename_keeps_a_target_it_cannot_replace,
                rename_needs_a_source_and_a_target_directory,
                directory_is_not_renamed_into_itself;
            paths:
                unusual_names_round_trip,
                names_up_to_the_host_limit_are_accepted,
                dot_segments_are_normalised_before_lookup,
                path_of_another_host_is_invalid;
            watch_missing:
                missing_watch_fires_when_the_path_appears,
                missing_watch_fires_on_a_rename_into_place,
                missing_watch_fires_when_an_ancestor_appears,
                missing_watch_fires_for_a_change_before_waiting,
                missing_watch_fires_when_a_present_path_is_removed,
                missing_watch_refuses_paths_in_another_state,
                replaced_missing_watch_does_not_wait_forever,
                dropped_missing_watch_frees_its_slot;
            find:
                find_matches_names_by_glob,
                find_ranks_query_matches,
                find_needs_a_glob_or_a_query,
                find_respects_the_path_limit,
                find_respects_ignore_files,
                special_files_do_not_block_a_find,
                find_root_must_exist;
            http:
                http_request_arrives_unchanged,
                http_response_arrives_unchanged,
                http_body_is_not_decompressed,
                empty_http_body_is_sent,
                http_error_status_is_a_response,
                redirect_is_followed,
                redirect_can_be_returned_as_the_response,
                credentials_are_not_sent_to_another_host_on_redirect,
                http_request_times_out,
                truncated_http_body_is_an_error,
                unreachable_http_host_is_an_error,
                invalid_http_request_is_refused,
                http_header_can_end_with_a_host_variable,
                cancelled_http_request_is_aborted;
            configuration:
                missing_configuration_yields_no_layer,
                selected_user_keys_are_returned,
                only_trusted_project_layers_are_returned,
                malformed_file_fails_unless_untrusted,
                configuration_request_without_keys_is_refused;
            discovery:
                plugin_and_its_skills_are_discovered,
                failing_root_does_not_affect_other_roots,
                truncated_discovery_walk_is_reported_as_a_warning,
                too_many_discovery_roots_are_refused,
                discovery_respects_the_sandbox_policy_of_its_root,
                installed_skills_and_plugins_are_listed;
            sandbox_file_access:
                read_only_sandbox_allows_reads_and_denies_writes,
                read_only_sandbox_with_network_denies_writes,
                sandbox_allows_writes_only_inside_the_workspace,
                existing_metadata_directories_are_read_only_in_a_sandbox,
                missing_metadata_directories_cannot_be_created_in_a_sandbox,
                metadata_directory_named_by_a_policy_is_writable_in_a_sandbox,
                denied_path_cannot_be_read_in_a_sandbox,
                denied_globs_are_expanded_in_a_sandbox,
                approved_root_write_keeps_denied_reads_in_a_sandbox,
                unlisted_path_does_not_exist_in_a_sandbox,
                single_file_can_be_writable_in_a_sandbox,
                most_specific_entry_wins_in_a_sandbox,
                temporary_directory_is_writable_in_a_sandbox,
                command_starts_in_its_working_directory_in_a_sandbox;
            sandbox_process:
                exit_code_is_reported_from_a_sandbox,
                signal_death_is_reported_from_a_sandbox,
                unrestricted_policy_restricts_nothing,
                sandbox_type_is_reported,
                sandbox_denied_is_false_without_a_sandbox,
                sandbox_has_no_network_unless_enabled,
                signals_do_not_leave_a_sandbox,
                terminal_works_in_a_sandbox,
                stdin_and_stdout_work_in_a_sandbox,
                terminate_kills_the_whole_tree_in_a_sandbox,
                dropping_the_last_handle_kills_the_tree_in_a_sandbox,
                descendants_in_a_sandbox_keep_writing_after_exit,
                many_sandboxes_run_concurrently,
                unenforceable_policy_is_refused_for_processes;
            sandbox_file_operations:
                sandboxed_files_are_read_and_written,
                files_outside_the_sandbox_are_not_found,
                denied_files_in_the_sandbox_are_invalid,
                writes_outside_the_sandbox_fail,
                metadata_directories_in_the_sandbox_are_protected,
                file_handles_work_in_a_sandbox,
                search_skips_denied_paths_in_a_sandbox,
                policy_without_restrictions_for_an_operation_allows_it,
                changes_in_a_sandbox_apply_in_call_order,
                unenforceable_policy_is_refused_for_files;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! case_tests {
    ($make:expr; $($family:ident: $($case:ident),+;)+) => {
        $($(
            #[tokio::test]
            async fn $case() {
                $crate::cases::$family::$case(&$make.await).await;
            }
        )+)+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! family_tests {
    ($start:expr, $connect:expr; $($family:ident: $($case:ident),+;)+) => {
        $(
            #[tokio::test]
            async fn $family() {
                let host = ::std::rc::Rc::new($start.await);
                let mut cases = $crate::concurrent_cases::ConcurrentCases::default();
                $(
                    let shared = ::std::rc::Rc::clone(&host);
                    cases.start(stringify!($case), async move {
                        $crate::cases::$family::$case(&$connect(&shared).await).await;
                    });
                )+
                cases.finish().await;
            }
        )+
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
            include_str!("cases/backpressure.rs"),
            include_str!("cases/stdin.rs"),
            include_str!("cases/terminal.rs"),
            include_str!("cases/termination.rs"),
            include_str!("cases/read_output.rs"),
            include_str!("cases/communicate.rs"),
            include_str!("cases/collect.rs"),
            include_str!("cases/process_limits.rs"),
            include_str!("cases/environment.rs"),
            include_str!("cases/start.rs"),
            include_str!("cases/process_lifetime.rs"),
            include_str!("cases/read_file.rs"),
            include_str!("cases/write_file.rs"),
            include_str!("cases/nofollow.rs"),
            include_str!("cases/metadata.rs"),
            include_str!("cases/directory.rs"),
            include_str!("cases/walk.rs"),
            include_str!("cases/remove.rs"),
            include_str!("cases/copy.rs"),
            include_str!("cases/rename.rs"),
            include_str!("cases/file_handle.rs"),
            include_str!("cases/ordering.rs"),
            include_str!("cases/paths.rs"),
            include_str!("cases/watch.rs"),
            include_str!("cases/watch_missing.rs"),
            include_str!("cases/search.rs"),
            include_str!("cases/find.rs"),
            include_str!("cases/http.rs"),
            include_str!("cases/http_stream.rs"),
            include_str!("cases/configuration.rs"),
            include_str!("cases/discovery.rs"),
            include_str!("cases/sandbox_file_access.rs"),
            include_str!("cases/sandbox_process.rs"),
            include_str!("cases/sandbox_file_operations.rs"),
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

//! Unified exec in the local environment and behind a server, with the same results.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "the functions below are parts of tests"
)]

mod cases;
mod fixture;

/// Makes every case a test in each environment.
macro_rules! for_each_environment {
    ($($case:ident),+ $(,)?) => {
        mod local {
            $(#[tokio::test] async fn $case() {
                crate::fixture::run_case(crate::cases::$case(crate::fixture::local())).await;
            })+
        }
        mod remote {
            $(#[tokio::test] async fn $case() {
                crate::fixture::run_case(async {
                    crate::cases::$case(crate::fixture::remote().await).await
                }).await;
            })+
        }
    };
}

for_each_environment!(
    finished_command_is_shown_with_its_exit_code,
    interactive_session_continues_across_calls,
    command_gets_noninteractive_and_custom_variables,
    tty_command_gets_a_terminal,
    screen_view_shows_the_drawing,
    interrupt_reaches_a_command_with_a_terminal,
    interrupt_reaches_a_command_without_a_terminal,
    large_output_keeps_its_head_and_tail,
    later_exit_is_reported_and_then_shown,
    background_process_does_not_block_a_call,
    endless_background_output_does_not_block_a_call,
    command_writes_only_in_its_workspace,
    missing_program_is_a_start_error,
    dropped_call_terminates_its_command,
    terminate_kills_the_process_tree,
);

//! Unified exec on this machine, and on the same machine behind a server: nobody can tell which.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "the functions below are parts of tests"
)]

mod cases;
mod fixture;

/// Makes every case a test of each place.
macro_rules! in_both_places {
    ($($case:ident),+ $(,)?) => {
        mod local {
            $(#[tokio::test] async fn $case() {
                crate::fixture::bounded(crate::cases::$case(crate::fixture::local())).await;
            })+
        }
        mod remote {
            $(#[tokio::test] async fn $case() {
                crate::fixture::bounded(async {
                    crate::cases::$case(crate::fixture::remote().await).await
                }).await;
            })+
        }
    };
}

in_both_places!(
    a_command_that_ends_is_shown_with_its_code,
    a_conversation_goes_on_where_it_stopped,
    a_command_has_quiet_variables_and_its_own,
    a_terminal_is_one,
    a_screen_shows_what_was_drawn,
    an_interrupt_reaches_a_command_with_a_terminal,
    an_interrupt_reaches_a_command_without_a_terminal,
    much_output_keeps_its_two_ends,
    a_later_end_is_told_and_then_shown,
    something_left_in_the_background_does_not_hold_a_call,
    something_that_goes_on_writing_in_the_background_does_not_hold_a_call,
    a_command_writes_in_its_workspace_only,
    a_program_that_does_not_exist_is_said_so,
    a_call_that_is_dropped_ends_its_command,
    terminating_ends_the_tree,
);

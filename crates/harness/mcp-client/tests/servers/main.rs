//! Servers that others wrote, here and on the other side of a connection.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a panic is how a test fails"
)]

mod cases;
mod fixture;

/// Makes every case a test of what `$make` builds.
macro_rules! cases {
    ($name:ident, $make:expr; $($case:ident),+ $(,)?) => {
        mod $name {
            $(
                #[tokio::test]
                async fn $case() {
                    crate::cases::$case(&$make.await).await;
                }
            )+
        }
    };
}

macro_rules! all_cases {
    ($name:ident, $make:expr) => {
        cases! { $name, $make;
            a_server_from_pypi_tells_the_time,
            a_server_from_npm_adds_numbers,
            a_megabyte_is_echoed,
            progress_is_told_while_a_call_goes_on,
            the_environment_is_as_it_was_configured,
            many_calls_are_under_way_at_once,
            a_server_that_is_killed_fails_the_call_under_way,
            a_server_that_is_not_there_is_told,
            a_program_that_is_no_server_is_told_with_its_last_words,
            dropping_the_service_ends_the_server,
        }
    };
}

all_cases!(local, std::future::ready(crate::fixture::Place::local()));
all_cases!(remote, crate::fixture::Place::remote());

cases! { remote_only, crate::fixture::Place::remote();
    a_disconnect_fails_the_call_under_way,
}

//! Third-party servers in a local and a remote environment.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a panic is how a test fails"
)]

mod cases;
mod fixture;

/// Makes every case a test in the environment that `$make` builds.
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
            pypi_time_server_converts_times,
            npm_everything_server_adds_numbers,
            megabyte_message_is_echoed,
            progress_notifications_arrive_during_a_call,
            environment_variables_match_the_configuration,
            concurrent_calls_complete,
            killed_server_fails_the_pending_call,
            missing_server_program_is_a_start_error,
            non_mcp_program_is_reported_with_its_stderr,
            dropping_the_service_stops_the_server,
        }
    };
}

all_cases!(
    local,
    std::future::ready(crate::fixture::EnvironmentFixture::local())
);
all_cases!(remote, crate::fixture::EnvironmentFixture::remote());

cases! { remote_only, crate::fixture::EnvironmentFixture::remote();
    disconnect_fails_the_pending_call,
}

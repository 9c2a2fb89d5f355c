//! How far an environment is.

use std::sync::Arc;

use super::source::OpenError;
use exec_env::environment::Environment;

/// How far an environment was when the manager was asked.
#[derive(Clone, Debug)]
pub enum EnvironmentState {
    /// Nobody has asked for it.
    NotStarted,
    /// It is being opened.
    Starting,
    /// It can be used, through this handle.
    Ready(Arc<Environment>),
    /// Opening it failed. It is tried again when somebody asks for it.
    Failed(Arc<OpenError>),
}

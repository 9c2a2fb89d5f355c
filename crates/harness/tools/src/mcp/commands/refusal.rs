//! Why a command was not written to or ended, in the words of the tools.

use exec_env::process::OpenError;

use crate::{
    mcp::answer::{Complaint, chain},
    unified::WriteStdinError,
};

impl From<WriteStdinError> for Complaint {
    fn from(error: WriteStdinError) -> Self {
        Self(match error {
            WriteStdinError::Open(OpenError::Unknown(number)) => {
                format!("there is no command with session_id {number}")
            }
            WriteStdinError::Open(OpenError::Busy(number)) => format!(
                "another call waits for the command with session_id {number}: wait for that one, or cancel it"
            ),
            WriteStdinError::MadeRoom(number, most) => format!(
                "the command with session_id {number} is gone: it was ended to make room for another, since \
                 at most {most} are kept"
            ),
            WriteStdinError::NoScreen(number) => format!(
                "the command with session_id {number} has no terminal, and so no screen: start it with `tty`"
            ),
            WriteStdinError::InputClosed(number) => {
                format!("the input of the command with session_id {number} is closed")
            }
            WriteStdinError::NoInput(number) => format!(
                "the command with session_id {number} was started without an input: start it with \
                 `open_stdin`, or with `tty` if it prompts"
            ),
            WriteStdinError::NotReading(number) => {
                format!("the command with session_id {number} does not read its input")
            }
            WriteStdinError::NotEnding(number) => {
                format!("the command with session_id {number} does not end")
            }
            error @ (WriteStdinError::Open(_) | WriteStdinError::Process(_)) => chain(&error),
        })
    }
}

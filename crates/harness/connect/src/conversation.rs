//! The conversation with the shell at a target, until the shell becomes a server.
//!
//! The script is sent once and reports in marked lines; other lines on its stdout are noise from
//! profiles. Nothing is sent before the shell has answered, because shells may read their stdin in
//! blocks.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use exec_transport::connect::ProgramPipes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, timeout, timeout_at},
};

use crate::error::{ClosedConnection, PlaceError, ShellRefusal};

/// The script.
const SCRIPT: &str = include_str!("connect.sh");
/// Maximum bytes of noise before an answer, and of one line.
const MAX_NOISE_BYTES: usize = 1 << 20;
/// Time limit for each answer, and for sending one block of the program.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a program may take to exit after its output has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes written at once.
const BLOCK_BYTES: usize = 64 << 10;

/// Report of the script.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ShellReport {
    /// The shell has read the script.
    Shell,
    /// It needs the program for this architecture, compressed if `is_gzip`.
    Need { architecture: String, is_gzip: bool },
    /// It already has this number of bytes of the program.
    Have(u64),
    /// It becomes a server: runs this program, which was found, kept or pushed.
    Run { how: String, path: String },
}

/// The shell at a target.
#[derive(Debug)]
pub(crate) struct Conversation {
    pipes: ProgramPipes,
    marker: String,
    buffer: Vec<u8>,
    noise: usize,
    has_answered: bool,
}

impl Conversation {
    /// Starts a conversation.
    pub(crate) fn new(pipes: ProgramPipes) -> Self {
        Self {
            pipes,
            marker: format!("exec-server:{}", uuid::Uuid::new_v4().simple()),
            buffer: Vec::new(),
            noise: 0,
            has_answered: false,
        }
    }

    /// Sends the script with these variables, and waits for the shell to answer.
    pub(crate) async fn send_script(
        &mut self,
        variables: &[(&str, String)],
        limit: Duration,
    ) -> Result<(), PlaceError> {
        // An echo of the script does not contain the marker.
        let (start, end) = self.marker.split_at(4);
        let mut text = format!("m='{start}''{end}'\n");
        for (name, value) in variables {
            text.push_str(&format!("{name}='{}'\n", value.replace('\'', r"'\''")));
        }
        text.push_str(SCRIPT);
        // If the target closes at once, its exit explains the failure.
        drop(timeout(limit, self.pipes.stream.write_all(text.as_bytes())).await);
        drop(self.pipes.stream.flush().await);
        match self.report(limit).await? {
            ShellReport::Shell => Ok(()),
            ShellReport::Need { .. } | ShellReport::Have(_) | ShellReport::Run { .. } => {
                Err(PlaceError::Noise)
            }
        }
    }

    /// Sends content, and returns the next report: after the content, or instead of reading all of
    /// it.
    pub(crate) async fn send_content(&mut self, content: &[u8]) -> Result<ShellReport, PlaceError> {
        for block in content.chunks(BLOCK_BYTES) {
            if let Some(report) = self.send_block(block).await? {
                return Ok(report);
            }
        }
        self.report(STEP_TIMEOUT).await
    }

    /// Waits for the next report. Noise does not extend the limit.
    pub(crate) async fn report(&mut self, limit: Duration) -> Result<ShellReport, PlaceError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(report) = self.take_report()? {
                return Ok(report);
            }
            let read = timeout_at(deadline, self.pipes.stream.read_buf(&mut self.buffer)).await;
            match read {
                Ok(Ok(count)) if count > 0 => {}
                Ok(_) => return Err(self.closed().await),
                Err(_) => return Err(PlaceError::Silent(limit)),
            }
        }
    }

    /// Sends a line.
    pub(crate) async fn send_line(&mut self, line: &str) -> Result<(), PlaceError> {
        match self.send_block(format!("{line}\n").as_bytes()).await? {
            None => Ok(()),
            Some(_) => Err(PlaceError::Noise),
        }
    }

    /// Ends the conversation when the script has become a server.
    ///
    /// # Errors
    /// If the output continues after the last report: the program is not a server.
    pub(crate) fn into_pipes(self) -> Result<ProgramPipes, PlaceError> {
        match self.buffer.is_empty() {
            true => Ok(self.pipes),
            false => Err(PlaceError::Noise),
        }
    }

    /// Sends a block, unless a report arrives before the script has read all of it. Noise does not
    /// extend the limit, progress does.
    async fn send_block(&mut self, mut block: &[u8]) -> Result<Option<ShellReport>, PlaceError> {
        let mut deadline = Instant::now() + STEP_TIMEOUT;
        while !block.is_empty() {
            let Self { pipes, buffer, .. } = self;
            let step = poll_fn(|cx| {
                if let Poll::Ready(wrote) = Pin::new(&mut pipes.stream).poll_write(cx, block) {
                    // The script stopped reading; its last report explains why.
                    return Poll::Ready(Some(wrote.unwrap_or(0)));
                }
                let mut space = [0; 4096];
                let mut read = ReadBuf::new(&mut space);
                let reading = Pin::new(&mut pipes.stream).poll_read(cx, &mut read);
                reading.map(|result| {
                    buffer.extend_from_slice(read.filled());
                    (result.is_err() || read.filled().is_empty()).then_some(0)
                })
            });
            match timeout_at(deadline, step).await {
                Ok(Some(0)) => return self.report(EXIT_TIMEOUT).await.map(Some),
                Ok(Some(count)) => {
                    block = &block[count..];
                    deadline = Instant::now() + STEP_TIMEOUT;
                }
                Ok(None) => {
                    if let Some(report) = self.take_report()? {
                        return Ok(Some(report));
                    }
                }
                Err(_) => return Err(PlaceError::Silent(STEP_TIMEOUT)),
            }
        }
        Ok(None)
    }

    /// Removes the next report from the buffer, and the noise before it.
    fn take_report(&mut self) -> Result<Option<ShellReport>, PlaceError> {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            // Noise may lack a newline at its end.
            let Some((_, words)) = line.split_once(&self.marker) else {
                self.noise += line.len();
                continue;
            };
            self.has_answered = true;
            if let Some(report) = report(words.trim())? {
                return Ok(Some(report));
            }
        }
        match self.noise + self.buffer.len() > MAX_NOISE_BYTES {
            true => Err(PlaceError::Noise),
            false => Ok(None),
        }
    }

    /// Explains why the output has ended.
    async fn closed(&mut self) -> PlaceError {
        let exit = timeout(EXIT_TIMEOUT, self.pipes.exit()).await;
        let exit = exit.unwrap_or_default();
        PlaceError::Closed(ClosedConnection::new(exit, self.has_answered))
    }
}

/// Parses a report. Notes are logged.
fn report(words: &str) -> Result<Option<ShellReport>, PlaceError> {
    let (kind, rest) = words.split_once(' ').unwrap_or((words, ""));
    Ok(Some(match kind {
        "shell" => ShellReport::Shell,
        "need" => {
            let (architecture, encoding) = rest.split_once(' ').unwrap_or((rest, ""));
            ShellReport::Need {
                architecture: architecture.to_owned(),
                is_gzip: encoding == "gzip",
            }
        }
        "have" => ShellReport::Have(rest.parse().map_err(|_| PlaceError::Noise)?),
        "run" => {
            let (how, path) = rest.split_once(' ').unwrap_or((rest, ""));
            let (how, path) = (how.to_owned(), path.to_owned());
            ShellReport::Run { how, path }
        }
        "fail" => {
            let (kind, text) = rest.split_once(' ').unwrap_or((rest, ""));
            return Err(match kind {
                "architecture" => PlaceError::Architecture(text.to_owned()),
                kind => PlaceError::Refused(ShellRefusal::new(kind, text)),
            });
        }
        _ => {
            tracing::warn!(note = rest, "note of the script at the place");
            return Ok(None);
        }
    }))
}

#[cfg(test)]
mod tests {
    use exec_transport::connect::ServerProgram;

    use super::*;

    fn conversation(script: &str) -> Conversation {
        let program = ServerProgram {
            args: vec!["-c".into(), script.into()],
            ..ServerProgram::new("sh")
        };
        Conversation::new(program.open().unwrap())
    }

    #[tokio::test]
    async fn noise_does_not_extend_the_wait_for_an_answer() {
        // A line, much more often than the limit.
        let mut conversation = conversation("while sleep 0.02; do echo noise; done");
        let limit = Duration::from_millis(300);
        let report = timeout(Duration::from_secs(20), conversation.report(limit)).await;
        assert!(matches!(report.unwrap(), Err(PlaceError::Silent(it)) if it == limit));
    }

    #[tokio::test]
    async fn noise_before_an_answer_is_skipped() {
        let mut conversation =
            conversation("echo noise; read -r marker; echo \"no newline$marker have 5\"");
        let marker = conversation.marker.clone();
        conversation.send_line(&marker).await.unwrap();
        let report = conversation.report(Duration::from_secs(20)).await;
        assert_eq!(report.unwrap(), ShellReport::Have(5));
    }
}

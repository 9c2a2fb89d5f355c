//! Recordings in the asciicast format, version 2: a header, and an event for each piece of output.
//!
//! Invariant: each line is valid JSON, and a character is never split between events.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

use exec_wire::process::{OutputStream, ProcessSummary};
use serde::Serialize;

use crate::command::{
    failure::CommandFailure,
    process_session::{output_failure, print_notice},
    ps::command_line,
    recorded_output::RecordedOutput,
};

/// File that receives a recording.
#[derive(Debug)]
pub(super) enum AsciicastFile {
    Stdout,
    File(PathBuf, File),
}

impl AsciicastFile {
    /// Creates the file, readable for this account only. `-` is stdout.
    pub(super) fn create(path: &Path, replaces: bool) -> Result<Self, CommandFailure> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        let mut options = OpenOptions::new();
        let options = match replaces {
            true => options.write(true).create(true).truncate(true),
            false => options.write(true).create_new(true),
        };
        let file = options.mode(0o600).open(path).map_err(|error| {
            let what = format!("cannot create `{}`: {error}", path.display());
            let failure = CommandFailure::failed(what);
            match error.kind() == io::ErrorKind::AlreadyExists {
                true => failure.next("--force replaces it"),
                false => failure,
            }
        })?;
        let secured = file.metadata().and_then(|found| match found.is_file() {
            true => file.set_permissions(PermissionsExt::from_mode(0o600)),
            false => Ok(()),
        });
        secured.map_err(|error| write_failure(path, &error))?;
        Ok(Self::File(path.to_owned(), file))
    }

    /// Writes the output of a process.
    pub(super) async fn write(
        self,
        process: &ProcessSummary,
        output: RecordedOutput,
    ) -> Result<ExitCode, CommandFailure> {
        match self {
            Self::Stdout => match record(process, output, &mut io::stdout().lock()).await? {
                Ok(()) => Ok(ExitCode::SUCCESS),
                Err(error) => output_failure(&error),
            },
            Self::File(path, file) => {
                let written = record(process, output, &mut BufWriter::new(file)).await?;
                written.map_err(|error| write_failure(&path, &error))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

fn write_failure(path: &Path, error: &io::Error) -> CommandFailure {
    let what = format!("cannot write `{}`: {error}", path.display());
    CommandFailure::failed(what)
}

/// Writes header and events page by page. The inner error is one of the target.
async fn record(
    process: &ProcessSummary,
    mut output: RecordedOutput,
    target: &mut impl Write,
) -> Result<io::Result<()>, CommandFailure> {
    let mut recording = Asciicast::new(process);
    let mut text = recording.header();
    loop {
        if let Err(error) = target.write_all(text.as_bytes()) {
            return Ok(Err(error));
        }
        let Some(chunks) = output.next_page().await? else {
            break;
        };
        text.clear();
        for chunk in chunks {
            if let Some(missing) = chunk.missing {
                print_notice(missing.notice());
            }
            text.push_str(&recording.event(chunk.at_ms, chunk.stream, &chunk.data));
        }
    }
    let written = target.write_all(recording.finish().as_bytes());
    Ok(written.and_then(|()| target.flush()))
}

/// Converts output into lines of a recording.
#[derive(Debug)]
struct Asciicast<'a> {
    process: &'a ProcessSummary,
    /// Incomplete character at the end of each stream, and the last byte of the output.
    incomplete: [Vec<u8>; 3],
    /// Time of the last event, in milliseconds since the start.
    last_ms: u64,
    after_return: bool,
}

#[derive(Serialize)]
struct AsciicastHeader<'a> {
    version: u8,
    width: u16,
    height: u16,
    timestamp: u64,
    command: String,
    title: &'a str,
}

impl<'a> Asciicast<'a> {
    fn new(process: &'a ProcessSummary) -> Self {
        Self {
            process,
            incomplete: Default::default(),
            last_ms: 0,
            after_return: false,
        }
    }

    fn header(&self) -> String {
        let size = self.process.size.unwrap_or_default();
        json_line(&AsciicastHeader {
            version: 2,
            width: size.cols,
            height: size.rows,
            timestamp: self.process.started_at_ms / 1000,
            command: command_line(self.process),
            title: self.process.process_id.as_str(),
        })
    }

    /// Returns the event for a chunk, or nothing if it only begins a character.
    fn event(&mut self, at_ms: u64, stream: OutputStream, data: &[u8]) -> String {
        let since_start = at_ms.saturating_sub(self.process.started_at_ms);
        // The clock may have been set back.
        self.last_ms = self.last_ms.max(since_start);
        let mut bytes = std::mem::take(&mut self.incomplete[stream as usize]);
        bytes.extend_from_slice(data);
        let complete = bytes.len() - incomplete_length(&bytes);
        self.incomplete[stream as usize] = bytes.split_off(complete);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.line(stream, &text)
    }

    /// Returns the events for characters that were never completed.
    fn finish(&mut self) -> String {
        let mut lines = String::new();
        for stream in [
            OutputStream::Stdout,
            OutputStream::Stderr,
            OutputStream::Pty,
        ] {
            let rest = std::mem::take(&mut self.incomplete[stream as usize]);
            lines.push_str(&self.line(stream, &String::from_utf8_lossy(&rest)));
        }
        lines
    }

    fn line(&mut self, stream: OutputStream, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let text = match stream {
            OutputStream::Pty => text.to_owned(),
            // Only a terminal has added carriage returns.
            OutputStream::Stdout | OutputStream::Stderr => self.with_returns(text),
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "53 bits hold ages of milliseconds"
        )]
        let seconds = self.last_ms as f64 / 1000.0;
        json_line(&(seconds, "o", text))
    }

    fn with_returns(&mut self, text: &str) -> String {
        let mut converted = String::with_capacity(text.len() + 16);
        for character in text.chars() {
            if character == '\n' && !self.after_return {
                converted.push('\r');
            }
            converted.push(character);
            self.after_return = character == '\r';
        }
        converted
    }
}

/// Returns the number of bytes at the end that begin a character.
fn incomplete_length(bytes: &[u8]) -> usize {
    let chunk = bytes.utf8_chunks().last();
    let invalid = chunk.map_or(&[][..], |chunk| chunk.invalid());
    let first = invalid.first().copied().unwrap_or(0);
    let expected = match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    // An invalid sequence in the middle is followed by another chunk.
    match bytes.ends_with(invalid) && invalid.len() < expected {
        true => invalid.len(),
        false => 0,
    }
}

fn json_line(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).unwrap_or_default();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use exec_wire::{id::ProcessId, path_uri::PathUri, process::TerminalSize};
    use serde_json::{Value, json};

    use super::*;

    fn process() -> ProcessSummary {
        ProcessSummary {
            process_id: ProcessId::new("one").unwrap(),
            argv: vec!["sh".to_owned(), "-c".to_owned(), "a b".to_owned()],
            cwd: PathUri::parse("file:///").unwrap(),
            tty: true,
            running: false,
            exit_code: Some(0),
            started_at_ms: 10_500,
            os_pid: None,
            detached: true,
            usage: None,
            owner: None,
            state: None,
            output_bytes: None,
            durable: Some(true),
            ended_at_ms: None,
            size: Some(TerminalSize { rows: 30, cols: 90 }),
        }
    }

    #[test]
    fn header_describes_the_process() {
        let process = process();
        let header: Value = serde_json::from_str(&Asciicast::new(&process).header()).unwrap();
        let expected = json!({
            "version": 2, "width": 90, "height": 30, "timestamp": 10,
            "command": "sh -c 'a b'", "title": "one",
        });
        assert_eq!(header, expected);
    }

    #[test]
    fn characters_are_carried_over_and_invalid_bytes_replaced() {
        let process = process();
        let mut recording = Asciicast::new(&process);
        let euro = "€".as_bytes();
        let mut lines = String::new();
        lines += &recording.event(11_000, OutputStream::Pty, &[b"a", &euro[..1]].concat());
        lines += &recording.event(11_250, OutputStream::Pty, &euro[1..2]);
        lines += &recording.event(
            11_500,
            OutputStream::Pty,
            &[&euro[2..], b"\xffb\n"].concat(),
        );
        // The clock was set back.
        lines += &recording.event(5_000, OutputStream::Pty, b"c\xf0\x9f");
        lines += &recording.finish();
        assert_eq!(
            lines,
            "[0.5,\"o\",\"a\"]\n[1.0,\"o\",\"€\u{fffd}b\\n\"]\n[1.0,\"o\",\"c\"]\n\
             [1.0,\"o\",\"\u{fffd}\"]\n"
        );
    }

    #[test]
    fn output_of_pipes_gets_carriage_returns() {
        let process = process();
        let mut recording = Asciicast::new(&process);
        let mut lines = recording.event(10_500, OutputStream::Stdout, b"a\nb\r");
        lines += &recording.event(10_500, OutputStream::Stderr, b"\nc");
        assert_eq!(lines, "[0.0,\"o\",\"a\\r\\nb\\r\"]\n[0.0,\"o\",\"\\nc\"]\n");
    }
}

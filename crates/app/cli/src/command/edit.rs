//! `exec-server edit`.
//!
//! Invariant: edited text is never lost: it is in the environment, or in a local file that the
//! message names.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::PathBuf,
    process::{ExitCode, ExitStatus},
};

use bytes::Bytes;
use clap::Args;
use exec_env::filesystem::{ExecutorFileSystem, FileError};
use exec_wire::{fs::WriteFile, path_uri::PathUri};
use tokio::process::Command;

use crate::command::{
    connect::EnvArgs,
    failure::{CommandFailure, FailureKind},
    files::{display_path, metadata_if_exists, read_file, retry_disconnected},
    operand::{OperandResolver, RemotePath},
    process_session::{print_notice, show_outages},
};

/// Maximum file size: it is in memory twice and sent in one message.
const MAX_BYTES: u64 = 32 << 20;

/// Edits a file of the environment in a local editor.
///
/// The editor is $VISUAL, $EDITOR or vi. A changed file is replaced atomically; a stock server
/// overwrites it. If the file changed there meanwhile, it is left alone and the edited copy is kept
/// here.
#[derive(Args, Clone, Debug)]
pub struct EditCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// File to edit; a missing one is created.
    #[arg(value_name = "FILE")]
    pub file: OsString,
}

impl EditCommand {
    /// Downloads the file, runs the editor, and writes the file back.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let mut operands = OperandResolver::new(&self.env_args);
        let RemotePath { env, path, .. } = operands.resolve(&self.file).await?;
        let Some(name) = path.file_name() else {
            let what = format!("`{}` is not a file", display_path(&path));
            return Err(CommandFailure::usage(what));
        };
        let files = env.environment().files;
        let before = show_outages(&env.client, content(&*files, &path)).await?;
        let failed = |what: &str, error: std::io::Error| {
            CommandFailure::failed(format!("cannot {what}: {error}"))
        };
        let draft = LocalDraft::write(&name, before.as_deref().unwrap_or_default())
            .map_err(|error| failed("keep a copy here", error))?;
        let edited = draft.edit(&editor()).await;
        let with_draft = |failure: CommandFailure| {
            let draft_path = draft.file.display().to_string();
            let line = env.line("cp", &[&draft_path, &format!(":{}", display_path(&path))]);
            failure.next(format!(
                "your changes are kept in {draft_path}; `{line}` uploads them"
            ))
        };
        let after = fs::read(&draft.file);
        let is_same = match (&after, &before) {
            (Ok(after), Some(before)) => after[..] == before[..],
            (Ok(after), None) => after.is_empty(),
            (Err(_), _) => false,
        };
        let problem = match edited {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("the editor failed ({status})")),
            Err(error) => Some(format!("cannot start the editor: {error}")),
        };
        if let Some(what) = problem {
            let failure = CommandFailure::failed(what);
            if is_same {
                draft.remove();
                return Err(
                    failure.next("nothing was changed; set $VISUAL or $EDITOR to another editor")
                );
            }
            return Err(with_draft(failure));
        }
        if is_same {
            draft.remove();
            print_notice(&format!("`{}` is unchanged", display_path(&path)));
            return Ok(ExitCode::SUCCESS);
        }
        let after = after.map_err(|error| with_draft(failed("read the edited copy", error)))?;
        let atomic = env.client.has_extensions();
        let back = write_back(&*files, &path, before.as_ref(), Bytes::from(after), atomic);
        let back = tokio::select! {
            back = show_outages(&env.client, back) => back,
            // Nothing else has handled Ctrl-C since the editor ran.
            _ = tokio::signal::ctrl_c() => {
                let what = format!("`{}` may not have been written", display_path(&path));
                Err(CommandFailure::new(FailureKind::Interrupted, what))
            }
        };
        back.map_err(with_draft)?;
        if !atomic {
            let path = display_path(&path);
            print_notice(&format!(
                "`{path}` was overwritten: this server cannot replace files atomically"
            ));
        }
        draft.remove();
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads the file; `None` if it does not exist.
async fn content(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
) -> Result<Option<Bytes>, CommandFailure> {
    let Some(found) = metadata_if_exists(files, path).await? else {
        return Ok(None);
    };
    if found.is_directory {
        let what = format!("`{}` is a directory", display_path(path));
        return Err(CommandFailure::failed(what).next("name a file in it"));
    }
    if found.size > MAX_BYTES {
        let most = MAX_BYTES >> 20;
        let what = format!("`{}` is larger than {most} MiB", display_path(path));
        return Err(CommandFailure::failed(what).next("copy it here with `cp`"));
    }
    match read_file(files, path).await {
        Ok(content) => Ok(Some(content)),
        Err(FileError::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Replaces the file if its content is still the one that was edited.
async fn write_back(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
    before: Option<&Bytes>,
    after: Bytes,
    atomic: bool,
) -> Result<(), CommandFailure> {
    if content(files, path).await?.as_ref() != before {
        let what = format!(
            "`{}` was changed there meanwhile and is left alone",
            display_path(path)
        );
        return Err(CommandFailure::failed(what));
    }
    let write = WriteFile {
        path: path.clone(),
        data_base64: None,
        follow_symlinks: None,
        create_parents: false,
        atomic,
        mode: None,
        sandbox: None,
    };
    let written = retry_disconnected(|| files.write_file(write.clone(), after.clone())).await;
    written.map_err(CommandFailure::from)
}

/// Returns the configured editor.
fn editor() -> OsString {
    let editor = ["VISUAL", "EDITOR"].into_iter().find_map(|name| {
        let editor = std::env::var_os(name);
        editor.filter(|editor| !editor.is_empty())
    });
    editor.unwrap_or_else(|| OsStr::new("vi").to_owned())
}

/// Local copy of the file. Dropping it keeps the copy.
#[derive(Debug)]
struct LocalDraft {
    directory: PathBuf,
    file: PathBuf,
}

impl LocalDraft {
    /// Writes the copy under the original file name, which editors use to detect the type.
    fn write(name: &[u8], content: &[u8]) -> io::Result<Self> {
        let unique = format!("exec-server-edit-{}", uuid::Uuid::new_v4().simple());
        let directory = std::env::temp_dir().join(unique);
        DirBuilder::new().mode(0o700).create(&directory)?;
        let file = directory.join(OsStr::from_bytes(name));
        let draft = Self { directory, file };
        match fs::write(&draft.file, content) {
            Ok(()) => Ok(draft),
            Err(error) => {
                draft.remove();
                Err(error)
            }
        }
    }

    /// Runs the editor. Like `git`, starts it through the shell, so it may have arguments.
    async fn edit(&self, editor: &OsStr) -> io::Result<ExitStatus> {
        let mut line = OsString::from(editor);
        line.push(" \"$@\"");
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(line)
            .arg("sh")
            .arg(&self.file)
            .spawn()?;
        loop {
            tokio::select! {
                status = child.wait() => return status,
                // Ctrl-C is for the editor.
                pressed = tokio::signal::ctrl_c() => pressed?,
            }
        }
    }

    /// Removes the copy and files that the editor left next to it.
    fn remove(&self) {
        // Leftovers are in the temporary directory.
        drop(fs::remove_dir_all(&self.directory));
    }
}

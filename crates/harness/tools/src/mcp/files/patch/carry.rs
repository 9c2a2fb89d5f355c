//! Doing what was planned, and undoing it.

use exec_env::filesystem::FileError;
use exec_wire::{fs::Remove, path_uri::PathUri};

use super::plan::{File, Plan};
use crate::mcp::{
    answer::Complaint,
    files::text::{Content, Mode, write},
    work::Work,
};

impl Plan {
    /// Writes everything. New content comes first, so that a failure loses no file; what cannot be put back
    /// goes last.
    pub(super) async fn carry_out(&self, work: &Work) -> Result<(), Complaint> {
        let mut changed: Vec<(&PathUri, &File)> = self
            .files
            .iter()
            .filter(|(_, file)| file.old != file.new)
            .collect();
        changed.sort_by_key(|(_, file)| match (&file.old, &file.new) {
            (_, Some(_)) => 0,
            (Some(Content::TooLarge(_)), None) => 2,
            (_, None) => 1,
        });
        for (count, (path, file)) in changed.iter().enumerate() {
            let mut made = make_it_hold(work, path, file.new.as_ref(), file.new_mode).await;
            if let (Err(FileError::Disconnected(_)), Some(Content::TooLarge(_))) =
                (&made, &file.old)
            {
                // It may be gone, and then all is done. To remove it twice does no harm.
                made = make_it_hold(work, path, file.new.as_ref(), file.new_mode).await;
            }
            let Err(error) = made else {
                continue;
            };
            // A file that could not be changed is as it was, unless nobody told so: the change may have been
            // made before the connection broke. In either case directories may be there for it.
            let touched = match error {
                FileError::NotFound(_)
                | FileError::Invalid(_)
                | FileError::Refused(_)
                | FileError::Host(_)
                | FileError::Remote(_) => &changed[..count],
                FileError::Disconnected(_) | _ => &changed[..=count],
            };
            let undone = undo(work, touched).await;
            remove_directories(work, &changed[..=count]).await;
            let kept = match undone {
                Undone::Entirely => "no file was changed",
                Undone::NotEntirely => "files may not be as they were",
            };
            let Complaint(why) = work.not_changed(path, &error);
            return Err(Complaint(format!("{why}; {kept}")));
        }
        Ok(())
    }
}

/// Whether everything is as it was.
enum Undone {
    Entirely,
    /// It is not, or nobody knows.
    NotEntirely,
}

/// Puts back what was changed, or may have been, the last change first.
async fn undo(work: &Work, done: &[(&PathUri, &File)]) -> Undone {
    let mut undone = Undone::Entirely;
    for (path, file) in done.iter().rev() {
        if make_it_hold(work, path, file.old.as_ref(), file.old_mode)
            .await
            .is_err()
        {
            undone = Undone::NotEntirely;
        }
    }
    undone
}

/// Removes the directories that were made. One that somebody else has put something in stays.
async fn remove_directories(work: &Work, done: &[(&PathUri, &File)]) {
    for path in done.iter().rev().flat_map(|(_, file)| &file.missing) {
        if let Err(error) = remove(work, path).await {
            tracing::debug!(%path, %error, "directory was not removed");
        }
    }
}

/// Makes a file hold this, or be gone. The second time changes nothing more.
async fn make_it_hold(
    work: &Work,
    path: &PathUri,
    content: Option<&Content>,
    mode: Mode,
) -> Result<(), FileError> {
    match content {
        Some(Content::Whole(data)) => write(work, path, data.clone(), mode).await,
        Some(Content::TooLarge(size)) => {
            let shown = work.show(path);
            let text = format!("`{shown}` was not kept: {size} bytes");
            Err(FileError::Refused(text))
        }
        None => remove(work, path).await,
    }
}

async fn remove(work: &Work, path: &PathUri) -> Result<(), FileError> {
    let remove = Remove {
        path: path.clone(),
        recursive: Some(false),
        force: Some(true),
        follow_symlinks: None,
        sandbox: work.sandbox(),
    };
    work.files().remove(remove).await
}

//! Durable sessions: who may resume them.

use std::os::fd::OwnedFd;

use exec_wire::id::SessionId;
use rustix::fs::Dir;
use serde::{Deserialize, Serialize};

use crate::{
    journal_error::{JournalError, encode_json},
    limits::{MAX_SESSION_FILE_BYTES, MAX_SESSIONS},
    private_file::{read_file, remove_file, replace_file},
};

const SUFFIX: &str = ".json";
/// Maximum id. File names have at most 255 bytes.
const MAX_ID_BYTES: usize = 128;

/// Durable session. Unknown members are ignored.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecord {
    /// Session id.
    pub id: SessionId,
    /// Account that may resume the session. Absent: any that knows the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Retention mode of its output. The state directory does not interpret it.
    pub retention: String,
    /// Creation time in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
}

impl SessionRecord {
    /// Writes the session. An existing file is replaced in one step.
    pub(crate) fn save(&self, directory: &OwnedFd) -> Result<(), JournalError> {
        let action = "save a session";
        let name = file_name(&self.id)?;
        let text = encode_json(self, action, ("session", MAX_SESSION_FILE_BYTES))?;
        let temporary = format!(".{name}");
        replace_file(directory, &name, &temporary, &text)
            .map(drop)
            .map_err(JournalError::io(action))
    }

    /// Reads all sessions, ordered by id. Damaged files are skipped: their sessions cannot be
    /// resumed.
    pub(crate) fn load_all(directory: &OwnedFd) -> Result<Vec<Self>, JournalError> {
        let action = JournalError::io("list the sessions");
        let mut sessions = Vec::new();
        let entries = Dir::read_from(directory).map_err(|errno| action(errno.into()))?;
        for entry in entries.take(MAX_SESSIONS) {
            let entry = entry.map_err(|errno| action(errno.into()))?;
            let name = entry.file_name().to_str().unwrap_or_default();
            sessions.extend(Self::load(directory, name));
        }
        sessions.sort_by(|one, other| one.id.as_str().cmp(other.id.as_str()));
        Ok(sessions)
    }

    /// Removes a session if it exists.
    pub(crate) fn remove(directory: &OwnedFd, id: &SessionId) -> Result<(), JournalError> {
        remove_file(directory, &file_name(id)?).map_err(JournalError::io("remove a session"))
    }

    fn load(directory: &OwnedFd, name: &str) -> Option<Self> {
        let id = SessionId::new(name.strip_suffix(SUFFIX)?);
        file_name(&id).ok()?;
        let text = read_file(directory, name, MAX_SESSION_FILE_BYTES).ok()?;
        let session: Self = serde_json::from_slice(&text).ok()?;
        (session.id == id).then_some(session)
    }
}

/// Returns the file name of a session. An id that could lead elsewhere is refused.
fn file_name(id: &SessionId) -> Result<String, JournalError> {
    let id = id.as_str();
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(is_safe) {
        return Err(JournalError::InvalidSessionId);
    }
    Ok(format!("{id}{SUFFIX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: &str) -> SessionRecord {
        SessionRecord {
            id: SessionId::new(id),
            principal: Some("alice".to_owned()),
            retention: "detached".to_owned(),
            created_at_ms: 7,
        }
    }

    fn directory() -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(folder.path()).unwrap().into();
        (folder, fd)
    }

    #[test]
    fn sessions_are_saved_replaced_and_removed() {
        let (_folder, fd) = directory();
        session("b-2").save(&fd).unwrap();
        session("a-1").save(&fd).unwrap();
        let newer = SessionRecord {
            principal: None,
            ..session("a-1")
        };
        newer.save(&fd).unwrap();
        assert_eq!(
            SessionRecord::load_all(&fd).unwrap(),
            [newer, session("b-2")]
        );
        SessionRecord::remove(&fd, &SessionId::new("a-1")).unwrap();
        SessionRecord::remove(&fd, &SessionId::new("a-1")).unwrap();
        assert_eq!(SessionRecord::load_all(&fd).unwrap(), [session("b-2")]);
    }

    #[test]
    fn session_id_that_leads_elsewhere_is_refused() {
        let (_folder, fd) = directory();
        let long = "a".repeat(129);
        for id in ["", ".", "..", "../a", "a/b", "a.b", "a\0b", &long] {
            let error = session(id).save(&fd).unwrap_err();
            assert!(matches!(error, JournalError::InvalidSessionId), "{id}");
        }
    }

    #[test]
    fn damaged_and_foreign_session_files_are_skipped() {
        let (folder, fd) = directory();
        session("good").save(&fd).unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
        };
        let text = serde_json::to_string(&session("open")).unwrap();
        write("open.json", &text, 0o644);
        write("other.json", &text, 0o600);
        write("cut.json", "{\"id\"", 0o600);
        write(".temp.json", &text, 0o600);
        write("huge.json", &" ".repeat(MAX_SESSION_FILE_BYTES + 1), 0o600);
        std::os::unix::fs::symlink("good.json", folder.path().join("link.json")).unwrap();
        assert_eq!(SessionRecord::load_all(&fd).unwrap(), [session("good")]);
    }
}

//! Paths for display, and as bytes.

use std::{
    ffi::OsStr,
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use exec_wire::path_uri::PathUri;

/// Returns the native form of a path; the URI if the host is of another kind.
pub(crate) fn display_path(path: &PathUri) -> String {
    match path.to_native() {
        Ok(native) => native.to_string_lossy().into_owned(),
        Err(_) => path.as_str().to_owned(),
    }
}

/// Returns the native form as bytes, for programs.
pub(crate) fn path_bytes(path: &PathUri) -> Vec<u8> {
    match path.to_native() {
        Ok(native) => native.into_os_string().into_vec(),
        Err(_) => path.as_str().as_bytes().to_vec(),
    }
}

/// Returns a path below `root` relative to how the user typed the root.
pub(crate) fn display_relative(typed: &str, root: &PathUri, path: &PathUri) -> String {
    let bytes = relative_path_bytes(typed.as_bytes(), root, path);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the same path as bytes.
pub(crate) fn relative_path_bytes(typed: &[u8], root: &PathUri, path: &PathUri) -> Vec<u8> {
    let (root_path, path) = (path_bytes(root), path_bytes(path));
    let child_path = path
        .strip_prefix(&root_path[..])
        .filter(|_| root_path != b"/");
    match child_path.and_then(|child_path| child_path.strip_prefix(b"/")) {
        Some(child_path) if typed == b"." => child_path.to_vec(),
        Some(child_path) => {
            let end = typed.iter().rposition(|&byte| byte != b'/');
            let typed = &typed[..end.map_or(0, |end| end + 1)];
            [typed, b"/", child_path].concat()
        }
        None => path,
    }
}

/// Returns the path of a directory entry; `None` if `name` is not a valid file name.
pub(crate) fn child_path(directory: &PathUri, name: &[u8]) -> Option<PathUri> {
    if !is_file_name(name) {
        return None;
    }
    directory.child(OsStr::from_bytes(name)).or_else(|| {
        let name = std::str::from_utf8(name).ok()?;
        // On such hosts these characters separate components, too.
        let is_file_name = !name.contains(['\\', ':']);
        directory.join(name).ok().filter(|_| is_file_name)
    })
}

/// Returns whether `name` is a valid file name. Names from a server need this check.
pub(crate) fn is_file_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_displayed_in_native_form() {
        let path = PathUri::parse("file:///srv/a%20b").unwrap();
        assert_eq!(display_path(&path), "/srv/a b");
        let windows = PathUri::parse("file:///C:/x").unwrap();
        assert_eq!(display_path(&windows), "file:///C:/x");
    }

    #[test]
    fn path_is_displayed_relative_to_the_typed_root() {
        let uri = |text: &str| PathUri::parse(text).unwrap();
        let (root, path) = (uri("file:///srv/app"), uri("file:///srv/app/a/b"));
        assert_eq!(display_relative(".", &root, &path), "a/b");
        assert_eq!(display_relative("app/", &root, &path), "app/a/b");
        assert_eq!(
            display_relative("/", &uri("file:///"), &path),
            "/srv/app/a/b"
        );
        assert_eq!(
            display_relative("x", &uri("file:///sr"), &path),
            "/srv/app/a/b"
        );
        assert_eq!(display_relative("app", &path, &path), "/srv/app/a/b");
    }

    #[test]
    fn non_utf8_bytes_are_kept_in_path_bytes() {
        let uri = |text: &str| PathUri::parse(text).unwrap();
        let (root, path) = (uri("file:///srv/%FF"), uri("file:///srv/%FF/a%FEb"));
        assert_eq!(relative_path_bytes(b".", &root, &path), b"a\xfeb");
        assert_eq!(
            relative_path_bytes(b"x\xff/", &root, &path),
            b"x\xff/a\xfeb"
        );
        assert_eq!(path_bytes(&path), b"/srv/\xff/a\xfeb");
    }

    #[test]
    fn child_path_works_for_unix_and_windows_directories() {
        let path = PathUri::parse("file:///srv").unwrap();
        assert_eq!(
            child_path(&path, b"a b").unwrap().as_str(),
            "file:///srv/a%20b"
        );
        let windows = PathUri::parse("file:///C:/x").unwrap();
        assert_eq!(
            child_path(&windows, b"y").unwrap().as_str(),
            "file:///C:/x/y"
        );
        assert_eq!(child_path(&windows, b"\xff"), None);
    }

    #[test]
    fn child_path_rejects_invalid_names() {
        let path = PathUri::parse("file:///srv").unwrap();
        let windows = PathUri::parse("file:///C:/x").unwrap();
        for name in ["", ".", "..", "../x", "/x", "a/b", "a/", "a\0b"] {
            assert_eq!(child_path(&path, name.as_bytes()), None, "{name:?}");
            assert_eq!(child_path(&windows, name.as_bytes()), None, "{name:?}");
        }
        assert!(child_path(&path, b"a\\b:c").is_some());
        for name in ["a\\b", "..\\x", "D:x"] {
            assert_eq!(child_path(&windows, name.as_bytes()), None, "{name:?}");
        }
    }
}

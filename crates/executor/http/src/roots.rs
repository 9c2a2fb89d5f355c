//! Whom requests trust: the roots of this machine, or those that the environment names.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
};

use exec_env::http::HttpError;
use tokio_rustls::rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Where systems keep the roots they trust. The first file that can be read counts. No library looks
/// for them, because those read environment variables.
const PLATFORM: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/ssl/cert.pem",
    "/opt/etc/ssl/certs/ca-certificates.crt",
];
const FILE: &str = "SSL_CERT_FILE";
const PRIVATE: &str = "CODEX_CA_CERTIFICATE";
/// Files of `SSL_CERT_DIR` that are looked at: a directory of roots has a few hundred.
const MAX_FILES: usize = 4096;

/// Reads the roots. `SSL_CERT_FILE` and `SSL_CERT_DIR` take the place of the machine's, and
/// `CODEX_CA_CERTIFICATE` is trusted beside them. Without any, `http` still works, and every
/// certificate is refused.
///
/// # Errors
/// Fails if `CODEX_CA_CERTIFICATE`, or else `SSL_CERT_FILE`, names a file without certificates.
pub(crate) fn find(env: &BTreeMap<OsString, OsString>) -> Result<RootCertStore, HttpError> {
    let mut store = RootCertStore::empty();
    let named = |name: &str| env.get(OsStr::new(name)).filter(|path| !path.is_empty());
    let (file, directories) = (named(FILE), named("SSL_CERT_DIR"));
    let private = named(PRIVATE);
    if let Some(private) = private {
        require(&mut store, PRIVATE, Path::new(private))?;
    }
    if file.is_none() && directories.is_none() {
        PLATFORM.iter().any(|file| add(&mut store, Path::new(file)));
        return Ok(store);
    }
    if let Some(file) = file {
        if private.is_none() {
            require(&mut store, FILE, Path::new(file))?;
        } else {
            add(&mut store, Path::new(file));
        }
    }
    for directory in directories.into_iter().flat_map(std::env::split_paths) {
        for file in files(&directory) {
            add(&mut store, &file);
        }
    }
    Ok(store)
}

/// Adds the certificates of the file that a variable names, of which there must be one.
fn require(store: &mut RootCertStore, variable: &str, file: &Path) -> Result<(), HttpError> {
    let failed = |why: &dyn fmt::Display| {
        let file = file.display();
        HttpError::Host(format!(
            "cannot read CA certificates from `{file}`, which {variable} names: {why}; name a PEM \
             file with at least one certificate, or unset the variable"
        ))
    };
    std::fs::File::open(file).map_err(|error| failed(&error))?;
    if add(store, file) {
        Ok(())
    } else {
        Err(failed(&"no certificate in it"))
    }
}

/// Adds the certificates of a file. Tells whether there was any that can be used.
fn add(store: &mut RootCertStore, file: &Path) -> bool {
    let Ok(certificates) = CertificateDer::pem_file_iter(file) else {
        return false;
    };
    let (added, _) = store.add_parsable_certificates(certificates.filter_map(Result::ok));
    added > 0
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let files = entries.take(MAX_FILES).filter_map(Result::ok);
    files.map(|entry| entry.path()).collect()
}

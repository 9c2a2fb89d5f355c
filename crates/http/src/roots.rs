//! Whom requests trust: the roots of this machine, or those that the environment names.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

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
/// Files of `SSL_CERT_DIR` that are looked at: a directory of roots has a few hundred.
const MAX_FILES: usize = 4096;

/// Reads the roots. `SSL_CERT_FILE` and `SSL_CERT_DIR` take the place of the machine's. Without any,
/// `http` still works, and every certificate is refused.
pub(crate) fn find(env: &BTreeMap<OsString, OsString>) -> RootCertStore {
    let mut store = RootCertStore::empty();
    let named = |name: &str| env.get(OsStr::new(name)).filter(|path| !path.is_empty());
    let (file, directories) = (named("SSL_CERT_FILE"), named("SSL_CERT_DIR"));
    if file.is_none() && directories.is_none() {
        PLATFORM.iter().any(|file| add(&mut store, Path::new(file)));
        return store;
    }
    if let Some(file) = file {
        add(&mut store, Path::new(file));
    }
    for directory in directories.into_iter().flat_map(std::env::split_paths) {
        for file in files(&directory) {
            add(&mut store, &file);
        }
    }
    store
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

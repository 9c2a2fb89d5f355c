//! The tools on the local environment without a client, and the HTTP endpoint without a socket.

mod commands;
mod faulty_files;
mod files;
mod http;
mod patches;

use std::{collections::BTreeMap, ffi::OsString, fs, path::Path, sync::Arc};

use exec_core::output_log::RetentionLimits;
use exec_env::{
    environment::{Environment, NoCatalog},
    http::NoHttpClient,
};
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    filesystem::LocalFileSystem,
    host::{HostDescription, HostFacts},
};
use exec_wire::path_uri::PathUri;
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::Value;

use self::faulty_files::{FaultyFiles, FileFault};
use super::{
    AgentWorkspace, McpTools, NetworkMode, WorkspaceAccess,
    session::{EditLock, McpContext, McpSession, ProgressSupport},
    settings, tool,
};

/// A workspace in a temporary directory. It has no sandbox, which would need a helper program.
struct McpFixture {
    directory: tempfile::TempDir,
    session: Arc<McpSession>,
}

impl McpFixture {
    /// Creates the fixture.
    fn new() -> Self {
        Self::with_environment(&environment())
    }

    /// Creates the fixture with faulty file operations.
    fn with_fault(fault: FileFault) -> (Self, Arc<FaultyFiles>) {
        let mut environment = environment();
        let files = Arc::new(FaultyFiles::new(environment.files, fault));
        environment.files = files.clone();
        (Self::with_environment(&environment), files)
    }

    fn with_environment(environment: &Environment) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let session = McpSession::new(
            environment,
            &Arc::new(workspace(directory.path())),
            &EditLock::default(),
            settings(),
            None,
        );
        Self {
            directory,
            session: Arc::new(session),
        }
    }

    /// Writes a file.
    fn write_file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Reads a file.
    fn read_file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.directory.path().join(name)).ok()
    }

    /// Calls a tool as a client does.
    async fn call(&self, name: &str, arguments: Value) -> CallToolResult {
        let tools = tool::tools(WorkspaceAccess::Open);
        let tool = tools.iter().find(|tool| tool.definition.name == name);
        let Value::Object(arguments) = arguments else {
            panic!("arguments are an object");
        };
        let ctx = McpContext::new(Arc::clone(&self.session), ProgressSupport::Unsupported);
        match (tool.unwrap().call)(Some(arguments), &ctx).await {
            Ok(answer) => answer.into_result(),
            Err(error) => error.into_result(),
        }
    }

    /// Calls a tool that succeeds with text.
    async fn call_ok(&self, name: &str, arguments: Value) -> String {
        let result = self.call(name, arguments).await;
        assert_eq!(result.is_error, Some(false), "{result:?}");
        text(&result)
    }

    /// Calls a tool that fails.
    async fn call_err(&self, name: &str, arguments: Value) -> String {
        let result = self.call(name, arguments).await;
        assert_eq!(result.is_error, Some(true), "{result:?}");
        text(&result)
    }
}

/// Returns the text of a result.
fn text(result: &CallToolResult) -> String {
    match &result.content[..] {
        [ContentBlock::Text(text)] => text.text.clone(),
        other => panic!("not one text: {other:?}"),
    }
}

/// Returns tools for a server.
fn tools(directory: &Path) -> McpTools {
    McpTools::new(environment(), workspace(directory), "0.0.0")
}

fn workspace(directory: &Path) -> AgentWorkspace {
    let root = PathUri::from_native(directory).unwrap();
    AgentWorkspace::new(root, WorkspaceAccess::Open, NetworkMode::Open)
}

fn environment() -> Environment {
    let env: BTreeMap<OsString, OsString> =
        BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]);
    let host = HostDescription::new(&HostFacts {
        env: &env,
        passwd: "",
        uid: 0,
        cwd: Path::new("/"),
        exists: &|path: &Path| path.exists(),
    });
    let backend = LocalBackend::new(LocalConfig {
        env,
        host,
        version: "0.0.0".to_owned(),
        retention: RetentionLimits::default(),
        sandbox: exec_sandbox::SandboxSettings::default(),
    });
    Environment {
        files: Arc::new(LocalFileSystem::default().with_policies(&backend)),
        backend: Arc::new(backend),
        http: Arc::new(NoHttpClient),
        catalog: Arc::new(NoCatalog),
        network: Arc::new(exec_env::tunnel::NoNetwork),
    }
}

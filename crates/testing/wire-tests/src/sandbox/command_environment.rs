//! Environment and descriptors of a command; the sandbox set-up must not use them.

use serde_json::json;

use super::{SandboxFixture, as_every_user, policies::SandboxPolicy};

as_every_user!(
    loader_variables_reach_only_the_command,
    environment_is_exactly_the_requested_one,
    no_descriptor_is_inherited,
    command_leads_its_own_session,
);

async fn loader_variables_reach_only_the_command(fixture: &mut SandboxFixture) {
    let object = fixture.text("work/none.so");
    let mut policies: Vec<Option<SandboxPolicy>> = vec![None];
    policies.extend(SandboxPolicy::all(fixture).into_iter().map(Some));
    for (variable, words) in [("LD_PRELOAD", "LD_PRELOAD"), ("LD_AUDIT", "audit")] {
        for policy in &policies {
            let mut params = fixture.params(policy.as_ref(), &["euid"]);
            params["env"][variable] = json!(object);
            params["env"]["LD_LIBRARY_PATH"] = json!(fixture.text("work"));
            let events = fixture.finish(params).await;
            let err = events.stream("stderr");
            // The loader prints one error for each program that it loads.
            let count = err.matches(words).count();
            let uid = format!("ok {}\n", fixture.uid());
            if count != 1 || events.stdout() != uid {
                let name = policy.as_ref().map_or("outside", |p| p.name.as_str());
                let out = events.stdout();
                fixture.record_fault(format!("{name}: {variable}: {count}: {out:?} {err:?}"));
            }
        }
    }
    // Set-up stages must not load objects from the workspace: this one is invalid.
    for name in ["libc.so.6", "libgcc_s.so.1", "none.so"] {
        std::fs::write(fixture.path("work").join(name), "no object").unwrap();
    }
    for policy in SandboxPolicy::all(fixture) {
        let mut params = fixture.params(Some(&policy), &["euid"]);
        params["env"]["LD_LIBRARY_PATH"] = json!(fixture.text("work"));
        let events = fixture.finish(params).await;
        let err = events.stream("stderr");
        // The command's own loader fails and reports it.
        if events.code() != 127 || err.matches("shared libraries").count() != 1 {
            fixture.record_fault(format!("{}: {} {err:?}", policy.name, events.code()));
        }
    }
}

async fn environment_is_exactly_the_requested_one(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        let mut params = fixture.params(Some(&policy), &["environ"]);
        params["env"] = json!({"A": "1", "BASH_ENV": "/x", "TMPDIR": "/nothing"});
        let events = fixture.finish(params).await;
        if events.stdout() != "ok A BASH_ENV TMPDIR\n" {
            fixture.record_fault(format!("{}: {}", policy.name, events.stdout()));
        }
    }
}

async fn no_descriptor_is_inherited(fixture: &mut SandboxFixture) {
    for policy in SandboxPolicy::all(fixture) {
        for (stdin, tty) in [(false, false), (true, false), (false, true)] {
            let mut params = fixture.params(Some(&policy), &["fds"]);
            params["pipeStdin"] = json!(stdin);
            params["tty"] = json!(tty);
            let events = fixture.finish(params).await;
            let text = events.stdout() + &events.stream("pty");
            if text.trim_end() != "ok 0 1 2" {
                fixture.record_fault(format!("{}: {text}", policy.name));
            }
        }
    }
}

async fn command_leads_its_own_session(fixture: &mut SandboxFixture) {
    let outside = fixture.run(None, &["session"]).await;
    for policy in SandboxPolicy::all(fixture) {
        fixture.says(Some(&policy), &outside, &["session"]).await;
    }
}

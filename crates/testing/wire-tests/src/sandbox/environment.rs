//! What a command is given, and what stages of ours are not.

use serde_json::json;

use super::{
    ground::{Ground, as_every_user},
    policies::Policy,
};

as_every_user!(
    variables_of_the_loader_reach_the_command_only,
    the_environment_is_the_one_that_was_asked_for,
    no_descriptor_is_inherited,
    a_command_leads_no_session_of_somebody_else,
);

async fn variables_of_the_loader_reach_the_command_only(ground: &mut Ground) {
    let object = ground.text("work/none.so");
    let mut policies: Vec<Option<Policy>> = vec![None];
    policies.extend(Policy::all(ground).into_iter().map(Some));
    for (variable, words) in [("LD_PRELOAD", "LD_PRELOAD"), ("LD_AUDIT", "audit")] {
        for policy in &policies {
            let mut params = ground.params(policy.as_ref(), &["euid"]);
            params["env"][variable] = json!(object);
            params["env"]["LD_LIBRARY_PATH"] = json!(ground.text("work"));
            let events = ground.finish(params).await;
            let err = events.stream("stderr");
            // The loader complains once for each program that it loads.
            let count = err.matches(words).count();
            let uid = format!("ok {}\n", ground.uid());
            if count != 1 || events.stdout() != uid {
                let name = policy.as_ref().map_or("outside", |p| p.name.as_str());
                let out = events.stdout();
                ground.fault(format!("{name}: {variable}: {count}: {out:?} {err:?}"));
            }
        }
    }
    // What a loader finds in the workspace is not loaded by anybody else: an object that is none.
    for name in ["libc.so.6", "libgcc_s.so.1", "none.so"] {
        std::fs::write(ground.path("work").join(name), "no object").unwrap();
    }
    for policy in Policy::all(ground) {
        let mut params = ground.params(Some(&policy), &["euid"]);
        params["env"]["LD_LIBRARY_PATH"] = json!(ground.text("work"));
        let events = ground.finish(params).await;
        let err = events.stream("stderr");
        // The command's own loader fails, and it is the command that tells.
        if events.code() != 127 || err.matches("shared libraries").count() != 1 {
            ground.fault(format!("{}: {} {err:?}", policy.name, events.code()));
        }
    }
}

async fn the_environment_is_the_one_that_was_asked_for(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        let mut params = ground.params(Some(&policy), &["environ"]);
        params["env"] = json!({"A": "1", "BASH_ENV": "/x", "TMPDIR": "/nothing"});
        let events = ground.finish(params).await;
        if events.stdout() != "ok A BASH_ENV TMPDIR\n" {
            ground.fault(format!("{}: {}", policy.name, events.stdout()));
        }
    }
}

async fn no_descriptor_is_inherited(ground: &mut Ground) {
    for policy in Policy::all(ground) {
        for (stdin, tty) in [(false, false), (true, false), (false, true)] {
            let mut params = ground.params(Some(&policy), &["fds"]);
            params["pipeStdin"] = json!(stdin);
            params["tty"] = json!(tty);
            let events = ground.finish(params).await;
            let text = events.stdout() + &events.stream("pty");
            if text.trim_end() != "ok 0 1 2" {
                ground.fault(format!("{}: {text}", policy.name));
            }
        }
    }
}

async fn a_command_leads_no_session_of_somebody_else(ground: &mut Ground) {
    let outside = ground.run(None, &["session"]).await;
    for policy in Policy::all(ground) {
        ground.says(Some(&policy), &outside, &["session"]).await;
    }
}

#![allow(clippy::all, missing_docs)]
#[path = "servers/place.rs"]
mod place;
use std::time::{Duration, Instant};
use exec_mcp::config::McpServerConfig;
use place::Place;
fn alive(pid: &str) -> bool { std::path::Path::new(&format!("/proc/{pid}")).exists() && !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default().contains(") Z") }
fn gone(what: &str, pid: &str) { let t = Instant::now(); while alive(pid) { if t.elapsed() > Duration::from_secs(15) { panic!("{what}: {pid} lives"); } std::thread::sleep(Duration::from_millis(50)); } eprintln!("{what}: gone after {:?}", t.elapsed()); }
fn pid(file: &std::path::Path) -> String { let t = Instant::now(); loop { if let Ok(s) = std::fs::read_to_string(file) { if s.ends_with('\n') { return s.trim().to_owned(); } } assert!(t.elapsed() < Duration::from_secs(10)); std::thread::sleep(Duration::from_millis(10)); } }
fn sh(script: String) -> McpServerConfig { let mut c = McpServerConfig::new("s", "/bin/sh", "file:///".parse().unwrap()); c.args = vec!["-c".into(), script]; c }
fn rt() -> tokio::runtime::Runtime { tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap() }
#[test]
fn shutdown_local() { let d = tempfile::tempdir().unwrap(); let f = d.path().join("p");
  let rt = rt(); let place = Place::local();
  let c = sh(format!("trap '' TERM HUP INT; echo $$ > {}; while :; do sleep 1; done", f.display()));
  let t = rt.block_on(async { let t = c.launch(&*place.backend, place.id()).await.unwrap(); tokio::time::sleep(Duration::from_millis(300)).await; t });
  let p = pid(&f); drop(rt); gone("runtime dropped (transport held)", &p); drop(t); }
#[test]
fn descendant_local() { let d = tempfile::tempdir().unwrap(); let f = d.path().join("p");
  let rt = rt(); let place = Place::local();
  let c = sh(format!("(trap '' TERM HUP; setsid sh -c 'echo $$ > {}; sleep 1000') & sleep 0.5; exit 3", f.display()));
  rt.block_on(async { let t = c.launch(&*place.backend, place.id()).await.unwrap(); let w = t.watch(); let e = w.until_ended().await; eprintln!("{e}"); drop(t); tokio::time::sleep(Duration::from_secs(3)).await; });
  let p = pid(&f); gone("descendant", &p); }
#[test]
fn descendant_remote() { let d = tempfile::tempdir().unwrap(); let f = d.path().join("p");
  let rt = rt(); 
  let c = sh(format!("(trap '' TERM HUP; setsid sh -c 'echo $$ > {}; sleep 1000') & sleep 0.5; exit 3", f.display()));
  rt.block_on(async { let place = Place::remote().await; let t = c.launch(&*place.backend, place.id()).await.unwrap(); let w = t.watch(); let e = w.until_ended().await; eprintln!("{e}"); drop(t); tokio::time::sleep(Duration::from_secs(3)).await; let p = pid(&f); for _ in 0..60 { if !alive(&p) { break } tokio::time::sleep(Duration::from_millis(100)).await; } assert!(!alive(&p), "remote descendant lives while connected"); });
  }
#[test]
fn stubborn_remote() { let d = tempfile::tempdir().unwrap(); let f = d.path().join("p");
  let rt = rt(); 
  let c = sh(format!("trap '' TERM HUP INT; echo $$ > {}; while :; do sleep 1; done", f.display()));
  rt.block_on(async { let place = Place::remote().await; let t = c.launch(&*place.backend, place.id()).await.unwrap(); tokio::time::sleep(Duration::from_millis(300)).await; drop(t); let p = pid(&f); for _ in 0..120 { if !alive(&p) { break } tokio::time::sleep(Duration::from_millis(100)).await; } assert!(!alive(&p), "stubborn lives"); });
  }
#[test]
fn flood() { let rt = rt(); let place = Place::local(); 
  let c = sh("yes garbage".to_owned()); 
  rt.block_on(async { let mut c = c; c.startup_timeout = Duration::from_secs(3); let t = Instant::now(); let e = c.connect(&*place.backend, place.id(), ()).await.unwrap_err(); eprintln!("{e} after {:?}", t.elapsed()); });
  let mut c = sh("head -c 1000000000 /dev/zero; sleep 100".to_owned());
  rt.block_on(async { c.startup_timeout = Duration::from_secs(20); let t = Instant::now(); let e = c.connect(&*place.backend, place.id(), ()).await.unwrap_err(); eprintln!("{e} after {:?}", t.elapsed()); });
  let mut c = sh("exec 0<&-; sleep 100".to_owned());
  rt.block_on(async { c.startup_timeout = Duration::from_secs(20); let t = Instant::now(); let e = c.connect(&*place.backend, place.id(), ()).await.unwrap_err(); eprintln!("{e} after {:?}", t.elapsed()); });
  let mut c = sh("exec 1>&-; sleep 100".to_owned());
  rt.block_on(async { c.startup_timeout = Duration::from_secs(5); let t = Instant::now(); let e = c.connect(&*place.backend, place.id(), ()).await.unwrap_err(); eprintln!("{e} after {:?}", t.elapsed()); });
  let mut c = sh("sleep 0.2".to_owned());
  rt.block_on(async { c.startup_timeout = Duration::MAX; let t = Instant::now(); let e = c.connect(&*place.backend, place.id(), ()).await.unwrap_err(); eprintln!("{e} after {:?}", t.elapsed()); });
}

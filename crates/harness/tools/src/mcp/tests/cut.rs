//! Patches over a connection that is cut while they are carried out.

use serde_json::{Value, json};

use super::{faulty::Fault, stage::Stage};

fn patch(body: &str) -> Value {
    json!({"patch": format!("*** Begin Patch\n{body}*** End Patch\n")})
}

/// Changes of `b` that come second, behind one of `a`.
const SECOND: [&str; 3] = [
    "*** Update File: b\n@@\n-two\n+2\n",
    "*** Delete File: b\n",
    "*** Add File: dir/new\n+x\n",
];

const FIRST: &str = "*** Update File: a\n@@\n-one\n+1\n";

fn put(stage: &Stage) {
    stage.put("a", "one\n");
    stage.put("b", "two\n");
}

#[tokio::test]
async fn a_change_that_was_made_without_an_answer_is_put_back() {
    for second in SECOND {
        let (stage, _) = Stage::with_fault(Fault::Unanswered(2));
        put(&stage);
        let refused = stage
            .refused("apply_patch", patch(&format!("{FIRST}{second}")))
            .await;
        assert_eq!(stage.text("a").unwrap(), "one\n", "{second}");
        assert_eq!(stage.text("b").as_deref(), Some("two\n"), "{second}");
        assert!(!stage.directory.path().join("dir").exists(), "{second}");
        assert!(refused.contains("cut on purpose"), "{refused}");
        assert!(refused.ends_with("; no file was changed"), "{refused}");
    }
}

#[tokio::test]
async fn what_may_have_been_changed_is_not_said_to_be_as_it_was() {
    for at in [1, 2] {
        for second in SECOND {
            let (stage, _) = Stage::with_fault(Fault::CutBehind(at));
            put(&stage);
            let refused = stage
                .refused("apply_patch", patch(&format!("{FIRST}{second}")))
                .await;
            let says = "; files may not be as they were";
            assert!(refused.ends_with(says), "{refused}");
        }
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_put_back_goes_with_the_rest_or_not_at_all() {
    let large = vec![b'x'; (16 << 20) + 1];
    let both = patch(&format!("{FIRST}*** Delete File: large\n"));
    let (stage, _) = Stage::with_fault(Fault::Unanswered(2));
    put(&stage);
    stage.put("large", &large);
    let told = stage.told("apply_patch", both.clone()).await;
    assert_eq!(told, "M a\nD large");
    assert_eq!(stage.text("a").unwrap(), "1\n");
    assert!(!stage.directory.path().join("large").exists());

    let (stage, _) = Stage::with_fault(Fault::CutBehind(2));
    put(&stage);
    stage.put("large", &large);
    let refused = stage.refused("apply_patch", both).await;
    let says = "; files may not be as they were";
    assert!(refused.ends_with(says), "{refused}");
}

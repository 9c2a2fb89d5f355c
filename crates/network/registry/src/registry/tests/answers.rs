//! What an answer must have.

use super::*;
use crate::registry::Member;

/// Returns `answer` with one member replaced, or gone.
fn with(mut answer: Value, member: &str, value: Option<Value>) -> Value {
    let members = answer.as_object_mut().unwrap();
    match value {
        Some(value) => members.insert(member.to_owned(), value),
        None => members.remove(member),
    };
    answer
}

#[tokio::test]
async fn a_registration_must_be_for_this_environment_and_profile() {
    let register = async |body: Value| {
        let server = Server::start(move |_, _| json(200, &body)).await;
        let made = registry(&server).register(&environment(), &key()).await;
        (made, server.seen().len())
    };
    for (member, found) in [
        ("environment_id", Member::EnvironmentId),
        ("security_profile", Member::SecurityProfile),
    ] {
        let (made, asked) = register(with(registered(), member, Some(json!("other")))).await;
        assert!(matches!(made, Err(RegistryError::Member(member)) if member == found));
        assert_eq!(asked, 1);
    }
    for member in [
        "environment_id",
        "url",
        "security_profile",
        "executor_registration_id",
    ] {
        let (made, _) = register(with(registered(), member, None)).await;
        assert!(
            matches!(made, Err(RegistryError::Malformed(Some(_)))),
            "{member}"
        );
        let (made, _) = register(with(registered(), member, Some(json!(7)))).await;
        assert!(
            matches!(made, Err(RegistryError::Malformed(Some(_)))),
            "{member}"
        );
    }
    // These two are not looked at before they are used.
    for member in ["url", "executor_registration_id"] {
        let (made, _) = register(with(registered(), member, Some(json!(" ")))).await;
        made.unwrap();
    }
}

#[tokio::test]
async fn a_ticket_must_be_whole() {
    let connect = async |body: Value| connect(200, body.to_string()).await;
    for (member, found) in [
        ("environment_id", Member::EnvironmentId),
        ("security_profile", Member::SecurityProfile),
        ("url", Member::Url),
        ("executor_registration_id", Member::RegistrationId),
        ("harness_key_authorization", Member::Authorization),
    ] {
        let error = connect(with(connected(), member, Some(json!(" "))))
            .await
            .unwrap_err();
        assert!(
            matches!(error, RegistryError::Member(member) if member == found),
            "{error}"
        );
        assert!(!error.may_connect_again());
        let error = connect(with(connected(), member, None)).await.unwrap_err();
        assert!(matches!(error, RegistryError::Malformed(_)), "{error}");
        assert!(!error.may_connect_again());
    }
    let mut more = serde_json::to_value(key()).unwrap();
    more.as_object_mut()
        .unwrap()
        .insert("more".to_owned(), json!(1));
    let error = connect(with(connected(), "executor_public_key", Some(more))).await;
    assert!(matches!(error, Err(RegistryError::Malformed(_))));
}

#[tokio::test]
async fn a_direct_registration_leads_where_nobody_listens_in() {
    let direct_register = async |member: &str, value: &str| {
        let body = with(direct(), member, Some(json!(value)));
        let server = Server::start(move |_, _| json(200, &body)).await;
        registry(&server).direct_register(&environment()).await
    };
    for (member, found) in [
        ("environment_id", Member::EnvironmentId),
        ("transport", Member::Transport),
        ("registration_id", Member::RegistrationId),
        ("url", Member::Url),
    ] {
        let made = direct_register(member, " ").await;
        assert!(matches!(made, Err(RegistryError::Member(member)) if member == found));
    }
    for url in ["nonsense", "https://host.test", "http://127.0.0.1"] {
        let made = direct_register("url", url).await;
        assert!(
            matches!(made, Err(RegistryError::Member(Member::Url))),
            "{url}"
        );
    }
    let made = direct_register("url", "ws://host.test/x?sig=s3cret").await;
    let error = made.unwrap_err();
    assert!(matches!(error, RegistryError::InTheClear(_)));
    assert!(!error.to_string().contains("s3cret"));
    direct_register("url", "ws://127.0.0.1:1/x").await.unwrap();
}

//! What every store promises, shown on the embedded one, and the rules of supersession.

mod file;
mod promises;
mod supersession;

use exec_relay::identity::{Identity, PublicKey};

use super::{
    ConnectionId, NewRegistration, NodeName, Presence, Registration, RegistrationId, Timestamp,
};

fn epoch() -> Timestamp {
    Timestamp::from_seconds(1_700_000_000)
}

fn key() -> PublicKey {
    Identity::generate().public_key().clone()
}

fn new(environment: &str, principal: &str, key: &PublicKey, at: Timestamp) -> NewRegistration {
    NewRegistration {
        environment: environment.parse().unwrap(),
        id: RegistrationId::generate(),
        executor_key: key.clone(),
        principal: principal.parse().unwrap(),
        at,
    }
}

fn presence(registration: &Registration) -> Presence {
    Presence {
        environment: registration.environment.clone(),
        registration: registration.id.clone(),
        node: "n1".parse::<NodeName>().unwrap(),
        connection: ConnectionId::generate(),
    }
}

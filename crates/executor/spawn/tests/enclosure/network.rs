//! The network of an enclosed command.

use std::{io::Write, mem::MaybeUninit, net::TcpListener, os::unix::net::UnixStream};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::*;

fn with_network(network: NetworkNamespace) -> Enclosure {
    let mut enclosure = namespaces(read_only());
    enclosure.namespaces.as_mut().unwrap().network = Some(network);
    enclosure
}

#[tokio::test]
async fn there_is_only_a_loopback() {
    let script = "tail -n +3 /proc/net/dev | cut -d: -f1; : > /dev/tcp/127.0.0.1/9";
    let outcome = run(with_network(NetworkNamespace::default()), script).await;
    let mut lines = outcome.output.lines().map(str::trim);
    assert_eq!(lines.next(), Some("lo"), "{outcome:?}");
    // Up, or the network would be unreachable.
    assert!(
        lines.any(|line| line.ends_with("Connection refused")),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn listeners_are_handed_out_through_the_door() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let enclosure = with_network(NetworkNamespace {
        listen: vec![3128, 1080],
        door: Some(theirs.into()),
    });
    let spawner = Spawner::default();
    let script = "exec 3<> /dev/tcp/127.0.0.1/1080; cat <&3; \
                  cat /proc/net/tcp | grep -c ' 0A '";
    let (child, output) = start(&spawner, enclosure, script).await.unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 8];
    let mut slices = [std::io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(&ours, &mut slices, &mut control, flags).unwrap();
    assert_eq!(message.bytes, 1);
    let mut received: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            received.extend(descriptors);
        }
    }
    let listeners: Vec<TcpListener> = received.into_iter().map(Into::into).collect();
    let ports = listeners.iter().map(|one| one.local_addr().unwrap().port());
    assert_eq!(ports.collect::<Vec<_>>(), [3128, 1080]);
    let (mut stream, _) = listeners[1].accept().unwrap();
    stream.write_all(b"from outside\n").unwrap();
    drop(stream);
    let mut text = String::new();
    std::fs::File::from(output)
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "from outside\n2\n");
    assert!(matches!(child.report().await, Some(Report::Exited(_))));
}

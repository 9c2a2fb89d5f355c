//! The whole copy: what is found is copied, several files at once.

use std::{convert::Infallible, io, task::Poll};

use futures_util::{
    StreamExt, TryStreamExt, future,
    stream::{self, FuturesUnordered},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{
    copier::{Copier, CopyOptions},
    links::Finishing,
    meter::Meter,
    scan::Scan,
    side::Side,
    target::Pair,
};
use crate::command::{
    failure::{Failure, FailureKind},
    stream::Notice,
};

/// Files that are copied at once.
const AT_ONCE: usize = 16;
/// Files that were found and wait.
const FOUND: usize = 256;

/// Copies sources of one end. Ctrl-C, SIGTERM and SIGHUP end it: what was not worth to be kept is removed.
pub(super) async fn copy_all(
    from: &Side,
    to: &Side,
    pairs: Vec<Pair>,
    options: CopyOptions,
    meter: &Meter,
) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let what = format!("cannot listen for signals: {error}");
        Failure::new(FailureKind::Failed, what)
    };
    let mut signals = Signals::listen().map_err(failed)?;
    let finishing = Finishing::default();
    let copier = Copier::new(from, to, options, &finishing, meter);
    let sides = [from, to];
    let scan = Scan::new(from, to, options, &finishing, meter);
    let scan = scan.avoiding(&pairs).await?;
    let outcome = tokio::select! {
        biased;
        kind = signals.next() => Err(ended(kind, from, to)),
        copied = scan_and_copy(&scan, pairs, &copier) => copied,
        never = tell_outages(&sides, meter) => match never {},
    };
    if outcome.is_err() {
        copier.tidy(&scan.trees()).await;
    }
    outcome
}

async fn scan_and_copy(
    scan: &Scan<'_>,
    pairs: Vec<Pair>,
    copier: &Copier<'_>,
) -> Result<(), Failure> {
    let (jobs, mut found) = mpsc::channel(FOUND);
    let find = async {
        for pair in pairs {
            scan.run(pair, &jobs).await?;
        }
        drop(jobs);
        Ok(())
    };
    let copy = stream::poll_fn(|cx| found.poll_recv(cx))
        .map(|job| copier.copy(job))
        .buffer_unordered(AT_ONCE)
        .try_for_each(|()| future::ready(Ok(())));
    futures_util::try_join!(find, copy)?;
    scan.finish().await
}

fn ended(kind: FailureKind, from: &Side, to: &Side) -> Failure {
    let what = match kind == FailureKind::Interrupted {
        true => "interrupted",
        false => "ended by a signal",
    };
    let next = match from.is(to) {
        // The environment copies files by itself, each of them in one step.
        true => "run the same command again",
        false => "run the same command again to go on where it ended",
    };
    Failure::new(kind, what).next(next)
}

/// The signals that end a copy.
struct Signals(Vec<(FailureKind, Signal)>);

impl Signals {
    fn listen() -> io::Result<Self> {
        let heard = [
            (SignalKind::interrupt(), FailureKind::Interrupted),
            (SignalKind::terminate(), FailureKind::Signalled(15)),
            (SignalKind::hangup(), FailureKind::Signalled(1)),
        ];
        let listen = |(which, kind)| Ok((kind, signal(which)?));
        heard
            .into_iter()
            .map(listen)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    async fn next(&mut self) -> FailureKind {
        future::poll_fn(|context| {
            for (kind, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*kind);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Says that a connection is out, and back: in the bar, or by a line where there is none.
async fn tell_outages(sides: &[&Side], meter: &Meter) -> Infallible {
    let places = sides.iter().filter_map(|side| side.place.as_ref());
    let watches: FuturesUnordered<_> = places
        .map(|place| async {
            let (mut connection, mut notice) = (place.client.connection(), Notice::new());
            while connection.changed().await.is_ok() {
                let state = *connection.borrow_and_update();
                if !meter.connection(state) {
                    notice.show(state);
                }
            }
        })
        .collect();
    watches.for_each(|()| future::ready(())).await;
    future::pending().await
}

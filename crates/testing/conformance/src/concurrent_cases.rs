//! Runs the cases of a family concurrently.

use tokio::task::{JoinHandle, LocalSet};

/// Cases that run concurrently in one test. A failed case does not stop the others.
#[derive(Debug, Default)]
pub struct ConcurrentCases {
    tasks: LocalSet,
    cases: Vec<(&'static str, JoinHandle<()>)>,
}

impl ConcurrentCases {
    /// Adds a case, which runs during [`finish`](Self::finish).
    pub fn start(&mut self, name: &'static str, case: impl Future<Output = ()> + 'static) {
        self.cases.push((name, self.tasks.spawn_local(case)));
    }

    /// Runs all cases to their end.
    ///
    /// # Panics
    ///
    /// Panics with the names of the failed cases.
    pub async fn finish(self) {
        let ends = async {
            let mut failed = Vec::new();
            for (name, case) in self.cases {
                if case.await.is_err() {
                    failed.push(name);
                }
            }
            failed
        };
        let failed = self.tasks.run_until(ends).await;
        assert!(failed.is_empty(), "failed cases: {}", failed.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use tokio::task::yield_now;

    use super::ConcurrentCases;

    #[tokio::test]
    #[should_panic(expected = "failed cases: second, third")]
    async fn failed_cases_are_named() {
        let mut cases = ConcurrentCases::default();
        cases.start("first", async {});
        cases.start("second", async { panic!("fails at once") });
        cases.start("third", async {
            yield_now().await;
            panic!("fails later");
        });
        cases.finish().await;
    }

    #[tokio::test]
    async fn cases_run_concurrently() {
        let mut cases = ConcurrentCases::default();
        let done = Rc::new(Cell::new(false));
        let other = Rc::clone(&done);
        cases.start("waits for the other", async move {
            while !other.get() {
                yield_now().await;
            }
        });
        cases.start("other", async move { done.set(true) });
        cases.finish().await;
    }
}

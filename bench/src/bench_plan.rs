//! Size of a run: counts, sizes and time limits in one place.

use std::time::{Duration, Instant};

/// Size of a run.
#[derive(Debug)]
pub(crate) struct BenchPlan {
    /// Whether this is only a smoke test.
    pub(crate) quick: bool,
    /// Turns of each contender in a latency measure.
    pub(crate) blocks: usize,
    /// Turns of each contender in a rate measure; the median of the turns is reported.
    pub(crate) rate_blocks: usize,
    /// Processes per block, one at a time.
    pub(crate) spawns: SampleBudget,
    /// Processes per block, many in flight.
    pub(crate) in_flight: SampleBudget,
    /// Echoes per block.
    pub(crate) echoes: SampleBudget,
    /// Bytes that a child writes in the throughput measure.
    pub(crate) output_bytes: u64,
    /// Idle processes.
    pub(crate) idle_processes: u64,
    /// Durable processes that write 100 MiB each.
    pub(crate) durable_writers: u64,
    /// Bytes that a child tries to write to a client that does not read.
    pub(crate) stalled_bytes: u64,
    /// Longest time to watch a server whose client does not read.
    pub(crate) stalled_time: Duration,
    /// Starts of the server per block.
    pub(crate) startups: SampleBudget,
    /// Processes that write concurrently through one client.
    pub(crate) streams: usize,
    /// Bytes that each of these processes writes.
    pub(crate) stream_bytes: u64,
    /// Bytes of the file that `cp` copies.
    pub(crate) copy_bytes: u64,
    /// Frames that a hub routes per block.
    pub(crate) frames: u32,
    /// Executors on one hub, each with a harness.
    pub(crate) pairs: u32,
    /// Tunnels that are open at once.
    pub(crate) tunnels: usize,
    /// Cuts of the hub's sockets during a transfer of `copy_bytes` through a tunnel.
    pub(crate) tunnel_cuts: u32,
    /// Commands that open a port, which is noticed.
    pub(crate) detected_ports: u32,
    /// Writers connected through the hub nodes when one is killed.
    pub(crate) writers: usize,
    /// Size of the file measures.
    pub(crate) files: FilePlan,
}

/// Size of the file measures.
#[derive(Debug)]
pub(crate) struct FilePlan {
    /// Calls per block, one at a time.
    pub(crate) calls: SampleBudget,
    /// Calls per block, many in flight.
    pub(crate) in_flight: SampleBudget,
    /// Bytes of the file that is read.
    pub(crate) read_bytes: u64,
    /// Bytes of the file that is written.
    pub(crate) write_bytes: u64,
    /// Walks per block.
    pub(crate) walks: SampleBudget,
    /// Directories to walk, each with a hundred files.
    pub(crate) directories: usize,
    /// Bytes of the file that is read while memory is sampled.
    pub(crate) peak_bytes: u64,
    /// Changes made one at a time, each awaited.
    pub(crate) changes: usize,
    /// Files created in one burst.
    pub(crate) burst: usize,
}

impl BenchPlan {
    /// Returns the plan of a run whose numbers can be published.
    pub(crate) const fn full() -> Self {
        Self {
            quick: false,
            blocks: 10,
            rate_blocks: 5,
            spawns: SampleBudget {
                count: 100,
                time: Duration::from_millis(1000),
            },
            in_flight: SampleBudget {
                count: 1000,
                time: Duration::from_millis(2500),
            },
            echoes: SampleBudget {
                count: 500,
                time: Duration::from_millis(750),
            },
            output_bytes: 512 << 20,
            idle_processes: 500,
            durable_writers: 20,
            stalled_bytes: 4 << 30,
            stalled_time: Duration::from_secs(5),
            startups: SampleBudget {
                count: 3,
                time: Duration::from_secs(2),
            },
            streams: 200,
            stream_bytes: 16 << 20,
            copy_bytes: 1 << 30,
            frames: 300_000,
            pairs: 1000,
            tunnels: 1000,
            tunnel_cuts: 50,
            detected_ports: 12,
            writers: 12,
            files: FilePlan {
                calls: SampleBudget {
                    count: 1000,
                    time: Duration::from_millis(250),
                },
                in_flight: SampleBudget {
                    count: 10_000,
                    time: Duration::from_millis(250),
                },
                read_bytes: 64 << 20,
                write_bytes: 32 << 20,
                walks: SampleBudget {
                    count: 3,
                    time: Duration::from_millis(300),
                },
                directories: 200,
                peak_bytes: 512 << 20,
                changes: 40,
                burst: 10_000,
            },
        }
    }

    /// Returns the plan of a smoke test.
    pub(crate) const fn quick() -> Self {
        Self {
            quick: true,
            blocks: 2,
            rate_blocks: 1,
            spawns: SampleBudget {
                count: 15,
                time: Duration::from_millis(200),
            },
            in_flight: SampleBudget {
                count: 100,
                time: Duration::from_millis(300),
            },
            echoes: SampleBudget {
                count: 50,
                time: Duration::from_millis(150),
            },
            output_bytes: 16 << 20,
            idle_processes: 40,
            durable_writers: 2,
            stalled_bytes: 256 << 20,
            stalled_time: Duration::from_millis(1500),
            startups: SampleBudget {
                count: 2,
                time: Duration::from_millis(500),
            },
            streams: 20,
            stream_bytes: 512 << 10,
            copy_bytes: 8 << 20,
            frames: 5000,
            pairs: 30,
            tunnels: 100,
            tunnel_cuts: 3,
            detected_ports: 2,
            writers: 3,
            files: FilePlan {
                calls: SampleBudget {
                    count: 100,
                    time: Duration::from_millis(100),
                },
                in_flight: SampleBudget {
                    count: 500,
                    time: Duration::from_millis(100),
                },
                read_bytes: 4 << 20,
                write_bytes: 13 << 20,
                walks: SampleBudget {
                    count: 1,
                    time: Duration::from_millis(100),
                },
                directories: 20,
                peak_bytes: 16 << 20,
                changes: 5,
                burst: 500,
            },
        }
    }
}

/// Limit in count and in time, whichever is reached first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleBudget {
    /// Most iterations.
    pub(crate) count: usize,
    /// Time after which no iteration starts.
    pub(crate) time: Duration,
}

impl SampleBudget {
    /// Yields one item per iteration that may still start. The first one always may.
    pub(crate) fn iterations(self) -> impl Iterator<Item = usize> {
        let end = Instant::now() + self.time;
        (0..self.count).take_while(move |&iteration| iteration == 0 || Instant::now() < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_are_bounded_by_count_and_by_time() {
        let by_count = SampleBudget {
            count: 3,
            time: Duration::from_secs(600),
        };
        assert_eq!(by_count.iterations().count(), 3);
        let by_time = SampleBudget {
            count: 3,
            time: Duration::ZERO,
        };
        assert_eq!(by_time.iterations().count(), 1);
    }
}

//! A timer for microseconds: the runtime's own counts milliseconds.

use std::{
    io,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// One alarm that can be set again and again.
#[derive(Debug)]
pub struct Alarm {
    /// Not a pipe, but read like one: eight bytes when the time is up.
    timer: Receiver,
}

impl Alarm {
    /// Makes an alarm that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            timer: Receiver::from_owned_fd_unchecked(timer)?,
        })
    }

    /// Sets the alarm, instead of any earlier setting.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let setting = Itimerspec {
            it_interval: none,
            it_value: value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }

    /// Resolves when the time is up.
    pub fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.timer.poll_read_ready(cx))?;
            match self.timer.try_read(&mut [0; 8]) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Instant};

    use super::*;

    #[tokio::test]
    async fn an_alarm_rings_after_its_time_and_can_be_set_again() {
        let alarm = Alarm::new().unwrap();
        for micros in [50, 2000] {
            let time = Duration::from_micros(micros);
            let before = Instant::now();
            alarm.set(time).unwrap();
            poll_fn(|cx| alarm.poll_rung(cx)).await.unwrap();
            assert!(before.elapsed() >= time);
        }
    }
}

//! The bare TCP exchange: a request of one size to another process, an answer of another size back.

use std::io::{Read as _, Write as _};

use anyhow::Result;

use super::helper::{self, Helper};

/// A connection to an exchange process.
#[derive(Debug)]
pub(crate) struct Exchange {
    helper: Helper,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl Exchange {
    /// Starts the exchange process, for requests and answers of these sizes.
    pub(crate) fn start(request: usize, response: usize) -> Result<Self> {
        let sizes = [request.to_string(), response.to_string()];
        Ok(Self {
            helper: Helper::start(&["exchange-floor", &sizes[0], &sizes[1]])?,
            request: vec![b'x'; request],
            response: vec![0; response],
        })
    }

    /// Sends one request and waits for its answer.
    pub(crate) fn round_trip(&mut self) -> Result<()> {
        self.helper.stream.write_all(&self.request)?;
        self.helper.stream.read_exact(&mut self.response)?;
        Ok(())
    }
}

/// The exchange process: answers every request until the connection ends.
pub(crate) fn serve(request: usize, response: usize) -> Result<()> {
    let mut stream = helper::accept()?;
    let mut request = vec![0; request];
    let response = vec![b'x'; response];
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&response)?;
    }
    Ok(())
}

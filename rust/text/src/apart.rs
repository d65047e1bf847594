//! Template work on a thread of its own. Parsing, comparing and freeing recurse as deeply as a template can nest
//! expressions and values, and a few operations walk lists that doubled sixty times without paying fuel: neither a
//! stack overflow nor an endless walk may reach the caller.

use crate::{bad_input, internal, out_of_resources, Failure};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::thread::Builder;
use std::time::Duration;

/// Stacks to try, largest first: address space, of which only what is used takes memory. The largest holds what
/// the limits on source and fuel allow, a million levels of at most 800 bytes; the others serve chats where so
/// much address space cannot be had.
const STACK_BYTES: [usize; 3] = [1 << 30, 1 << 28, 1 << 26];
/// Several times what the fuel of a render's three passes can take.
const SECONDS: u64 = 8;

/// Runs `f` apart. After SECONDS its thread is left to itself, holding what `f` holds.
pub fn apart<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, Failure> + Send + Clone + 'static,
) -> Result<T, Failure> {
    let (send, receive) = sync_channel(1);
    let started = STACK_BYTES.into_iter().find_map(|bytes| {
        let (f, send) = (f.clone(), send.clone());
        let work = move || {
            let outcome = catch_unwind(AssertUnwindSafe(f));
            let failed = |_| Err(internal("handling the chat template failed".into()));
            let _ = send.send(outcome.unwrap_or_else(failed)); // nobody waits any more: drop it
        };
        Builder::new().name("template".into()).stack_size(bytes).spawn(work).ok()
    });
    let Some(thread) = started else {
        return Err(out_of_resources("no thread can be started for the chat template".into()));
    };
    drop(send);
    match receive.recv_timeout(Duration::from_secs(SECONDS)) {
        Ok(outcome) => {
            let _ = thread.join(); // it is at its end: what it holds is given back before the caller goes on
            outcome
        }
        Err(RecvTimeoutError::Timeout) => {
            Err(bad_input(format!("the chat template ran longer than {SECONDS} seconds and was given up")))
        }
        Err(RecvTimeoutError::Disconnected) => Err(internal("the chat template's thread ended".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_deep_recursion_stay_apart() {
        fn depth(n: u64) -> u64 {
            if n == 0 {
                0
            } else {
                std::hint::black_box(1) + depth(std::hint::black_box(n - 1))
            }
        }
        assert!(matches!(apart(|| Ok(depth(1_000_000))), Ok(1_000_000)));
        assert!(matches!(apart::<()>(|| panic!("on purpose")), Err(Failure { kind: 5, .. })));
    }
}

//! Deadlines of calls, in gRPC's timeout header.

use std::time::{Duration, Instant};
use tonic::codegen::http::HeaderValue;

/// The name of gRPC's timeout header.
pub const TIMEOUT: &str = "grpc-timeout";

/// Maximum part of a caller's timeout that is reserved for the response. With it the callee can report a
/// timeout itself, in more detail than the caller's own timer.
const MARGIN: Duration = Duration::from_millis(200);

/// Formats a timeout as the value of a `grpc-timeout` header: at most eight digits and a unit.
pub fn to_timeout(left: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let (micros, millis) = (left.as_micros(), left.as_millis());
    let text = if micros <= MOST {
        format!("{micros}u")
    } else if millis <= MOST {
        format!("{millis}m")
    } else {
        format!("{}S", u128::from(left.as_secs()).min(MOST))
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("99999999S"))
}

/// Parses the value of a `grpc-timeout` header. Returns `None` for a malformed value.
pub fn from_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Returns the time by which a call has to end at the callee for its response to arrive in time.
pub fn of_answer<T>(request: &tonic::Request<T>) -> Option<Instant> {
    of_timeout(request.metadata().get(TIMEOUT)?.to_str().ok()?)
}

/// Returns the time of [`of_answer`] for the value of a `grpc-timeout` header; `None` if the value is malformed.
pub fn of_timeout(text: &str) -> Option<Instant> {
    within(from_timeout(text)?)
}

/// Returns the time of [`of_answer`] for a caller that waits for the duration `left` from now.
pub fn within(left: Duration) -> Option<Instant> {
    Instant::now().checked_add(left - MARGIN.min(left / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_trip_and_malformed_ones_are_none()
    -> Result<(), tonic::codegen::http::header::ToStrError> {
        for left in [0, 1, 99_999_999, 100_000_000].map(Duration::from_micros) {
            assert_eq!(from_timeout(to_timeout(left).to_str()?), Some(left));
        }
        let long = Duration::from_secs(200_000);
        assert_eq!(from_timeout(to_timeout(long).to_str()?), Some(long));
        assert_eq!(to_timeout(Duration::MAX), "99999999S");
        for rubbish in ["", "S", "1", "1x", "123456789S", "+1S", "1é"] {
            assert_eq!(from_timeout(rubbish), None, "{rubbish}");
        }
        Ok(())
    }
}

//! How long a call may take, as gRPC's header says it.

use std::time::{Duration, Instant};
use tonic::codegen::http::HeaderValue;

/// The header.
pub const TIMEOUT: &str = "grpc-timeout";

/// Of a caller's time so much is left for the answer's way, at most: it says more than the caller's own timer
/// would.
const MARGIN: Duration = Duration::from_millis(200);

/// The header's value: at most eight digits and a unit.
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

/// `None` for what is no timeout.
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

/// When a call has to end here, for its answer to arrive in time.
pub fn of_answer<T>(request: &tonic::Request<T>) -> Option<Instant> {
    of_timeout(request.metadata().get(TIMEOUT)?.to_str().ok()?)
}

/// As [`of_answer`], by the header's value.
pub fn of_timeout(text: &str) -> Option<Instant> {
    within(from_timeout(text)?)
}

/// As [`of_answer`], of a caller who waits for so long.
pub fn within(left: Duration) -> Option<Instant> {
    Instant::now().checked_add(left - MARGIN.min(left / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_trip_and_rubbish_is_none() -> Result<(), tonic::codegen::http::header::ToStrError> {
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

//! The scripts of code points, as numbers of ICU.

use std::sync::LazyLock;

/// For each run of code points of one script, the first of them in hexadecimal, a colon, and the script's number.
const RUNS: &str = include_str!("scripts.txt");

static STARTS: LazyLock<Vec<(i32, i32)>> = LazyLock::new(|| {
    let run = |text: &str| {
        let (start, script) = text.split_once(':')?;
        Some((i32::from_str_radix(start, 16).ok()?, script.parse().ok()?))
    };
    RUNS.split_ascii_whitespace().filter_map(run).collect()
});

/// Returns the number of a code point's script, or -1 outside Unicode.
pub(super) fn of_code(code: i32) -> i32 {
    if !(0..=0x10_ffff).contains(&code) {
        return -1;
    }
    let after = STARTS.partition_point(|&(start, _)| start <= code);
    after.checked_sub(1).and_then(|run| STARTS.get(run)).map_or(-1, |&(_, script)| script)
}

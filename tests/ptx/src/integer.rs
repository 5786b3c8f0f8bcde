//! Integer and bit instructions.

use crate::number::Integer;
use crate::rule::Rule::{self, Carried, Four, One, Three, Two};

/// Returns the rule of an integer or bit operation with modifiers, such as `mul` with `hi`.
pub(crate) fn rule<T: Integer>(operation: &str, modifiers: &[&str]) -> Option<Rule> {
    Some(match (operation, modifiers) {
        ("mov", ["volatile"] | []) => One(|a| a),
        ("add", []) => Two(|a, b| T::cut(T::of(a).wide() + T::of(b).wide()).bits()),
        ("sub", []) => Two(|a, b| T::cut(T::of(a).wide() - T::of(b).wide()).bits()),
        ("mul", ["lo"]) => Two(|a, b| T::cut(product::<T>(a, b)).bits()),
        ("mul", ["hi"]) => Two(|a, b| T::cut(product::<T>(a, b) >> T::BITS).bits()),
        ("mul", ["wide"]) => Two(|a, b| twice::<T>(product::<T>(a, b))),
        ("mad", ["lo"]) => Three(|a, b, c| T::cut(product::<T>(a, b).wrapping_add(T::of(c).wide())).bits()),
        ("mad", ["wide"]) => Three(|a, b, c| twice::<T>(product::<T>(a, b).wrapping_add(i128::from(c)))),
        // For a divisor of 0, `div` and `rem` have the hardware's results.
        ("div", []) => {
            Two(|a, b| T::of(a).wide().checked_div(T::of(b).wide()).map_or(ones::<T>(), |x| T::cut(x).bits()))
        }
        ("rem", []) => {
            Two(|a, b| T::of(a).wide().checked_rem(T::of(b).wide()).map_or(a, |x| T::cut(x).bits()))
        }
        ("min", []) => Two(|a, b| T::cut(T::of(a).wide().min(T::of(b).wide())).bits()),
        ("max", []) => Two(|a, b| T::cut(T::of(a).wide().max(T::of(b).wide())).bits()),
        ("neg", []) => One(|a| T::cut(-T::of(a).wide()).bits()),
        ("abs", []) => One(|a| T::cut(T::of(a).wide().abs()).bits()),
        ("and", []) => Two(|a, b| T::of(a & b).bits()),
        ("or", []) => Two(|a, b| T::of(a | b).bits()),
        ("xor", []) => Two(|a, b| T::of(a ^ b).bits()),
        ("not", []) => One(|a| T::of(!a).bits()),
        // A shift by more than the width of the type acts like a shift by the width.
        ("shl", []) => Two(|a, b| T::cut(T::of(a).wide() << u64::from(b as u32).min(64)).bits()),
        ("shr", []) => Two(|a, b| T::cut(T::of(a).wide() >> u64::from(b as u32).min(64)).bits()),
        ("clz", []) => One(|a| u64::from(T::of(a).bits().leading_zeros() - (64 - T::BITS))),
        ("popc", []) => One(|a| u64::from(T::of(a).bits().count_ones())),
        ("bfi", []) => Four(|a, b, from, count| {
            let mask = low_bits(count & 0xff) << (from & 0xff).min(63);
            T::of((a << (from & 0xff).min(63)) & mask | b & !mask).bits()
        }),
        ("prmt", []) => Three(permuted),
        ("selp", []) => Three(|a, b, is_first| if is_first != 0 { a } else { b }),
        ("setp", [comparison]) => return compared::<T>(comparison),
        ("add", ["cc"]) => Carried(|[a, b, _], _| sum::<T>(T::of(a).wide(), T::of(b).wide(), false)),
        ("addc", [] | ["cc"]) => {
            Carried(|[a, b, _], carry| sum::<T>(T::of(a).wide(), T::of(b).wide(), carry))
        }
        ("sub", ["cc"]) => Carried(|[a, b, _], _| sum::<T>(T::of(a).wide(), -T::of(b).wide(), false)),
        ("subc", [] | ["cc"]) => Carried(|[a, b, _], borrow| {
            sum::<T>(T::of(a).wide(), -T::of(b).wide() - i128::from(borrow), false)
        }),
        ("mad", ["lo", "cc"]) => Carried(|[a, b, c], _| sum::<T>(low::<T>(a, b), T::of(c).wide(), false)),
        ("madc", ["lo"] | ["lo", "cc"]) => {
            Carried(|[a, b, c], carry| sum::<T>(low::<T>(a, b), T::of(c).wide(), carry))
        }
        ("mad", ["hi", "cc"]) => Carried(|[a, b, c], _| sum::<T>(high::<T>(a, b), T::of(c).wide(), false)),
        ("madc", ["hi"] | ["hi", "cc"]) => {
            Carried(|[a, b, c], carry| sum::<T>(high::<T>(a, b), T::of(c).wide(), carry))
        }
        _ => return None,
    })
}

/// Returns the rule of an operation on predicates, which are 0 and 1.
pub(crate) fn truth(operation: &str) -> Option<Rule> {
    Some(match operation {
        "mov" => One(|a| a & 1),
        "and" => Two(|a, b| a & b & 1),
        "or" => Two(|a, b| (a | b) & 1),
        "xor" => Two(|a, b| (a ^ b) & 1),
        "not" => One(|a| !a & 1),
        _ => return None,
    })
}

/// Returns the rule of a comparison.
fn compared<T: Integer>(comparison: &str) -> Option<Rule> {
    Some(Two(match comparison {
        "eq" => |a, b| u64::from(T::of(a) == T::of(b)),
        "ne" => |a, b| u64::from(T::of(a) != T::of(b)),
        "lt" => |a, b| u64::from(T::of(a) < T::of(b)),
        "le" => |a, b| u64::from(T::of(a) <= T::of(b)),
        "gt" => |a, b| u64::from(T::of(a) > T::of(b)),
        "ge" => |a, b| u64::from(T::of(a) >= T::of(b)),
        _ => return None,
    }))
}

/// Returns the product of two numbers in twice their width. For unsigned 64-bit operands the highest bit of the product
/// is the sign bit of i128; the callers only use the bits.
fn product<T: Integer>(a: u64, b: u64) -> i128 {
    T::of(a).wide().wrapping_mul(T::of(b).wide())
}

/// Returns the low half of the product of `a` and `b`.
fn low<T: Integer>(a: u64, b: u64) -> i128 {
    T::cut(product::<T>(a, b)).wide()
}

/// Returns the high half of the product of `a` and `b`.
fn high<T: Integer>(a: u64, b: u64) -> i128 {
    T::cut(product::<T>(a, b) >> T::BITS).wide()
}

/// Truncates `wide` to twice the width of the type.
fn twice<T: Integer>(wide: i128) -> u64 {
    wide as u64 & low_bits(u64::from(2 * T::BITS))
}

/// Returns a number of the type's width whose bits are all 1.
fn ones<T: Integer>() -> u64 {
    low_bits(u64::from(T::BITS))
}

/// Returns a mask of the lowest `count` bits.
fn low_bits(count: u64) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Returns `a + b + carry`, and the new carry: whether the sum is below 0 or above the type's maximum.
fn sum<T: Integer>(a: i128, b: i128, carry: bool) -> (u64, bool) {
    let sum = a + b + i128::from(carry);
    (T::cut(sum).bits(), sum < 0 || sum > T::MOST)
}

/// Returns the result of `prmt`: four of the eight bytes of `a` and `b`. Four bits of `selector` choose each byte: the
/// lower three bits are its index, and the highest bit replaces the byte by copies of its sign bit.
fn permuted(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = (b << 32) | u64::from(a as u32);
    (0..4).fold(0, |result, i| {
        let choice = selector >> (4 * i);
        let byte = (bytes >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        result | u64::from(byte) << (8 * i)
    })
}

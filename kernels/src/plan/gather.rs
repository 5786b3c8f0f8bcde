//! The text of an element's position in a tensor, for error messages.

use smallvec::SmallVec;

/// Returns the text `name[i, j, …]` for the element with index `i` of a tensor of shape `shape`, for error messages.
pub(crate) fn position(name: &str, shape: &[usize], mut i: usize) -> String {
    if shape.is_empty() {
        return name.to_owned();
    }
    let mut at: SmallVec<[String; 6]> = SmallVec::new();
    for &d in shape.iter().rev() {
        at.push((i % d.max(1)).to_string());
        i /= d.max(1);
    }
    at.reverse();
    format!("{name}[{}]", at.join(","))
}

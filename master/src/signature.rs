//! The signature of a step: its feeds, fetches and targets, regardless of spelling and order.

use proto::pb;
use std::sync::Arc;

/// The feeds, fetches and targets of a step: each list is sorted, and tensor names are without `:0`. Repeated
/// fetches and targets occur once. Repeated feeds are kept, so that a step with repeated feeds matches no
/// cached plan; planning refuses it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature(Arc<str>);

impl Signature {
    /// Returns the signature of a step with these feeds, fetches and targets. The order of the names, the port
    /// `:0` of a tensor and repetitions of fetches and targets make no difference to the signature.
    pub(crate) fn new<'a, N: AsRef<str> + ?Sized + 'a>(
        feeds: impl IntoIterator<Item = &'a N>,
        fetches: impl IntoIterator<Item = &'a N>,
        targets: impl IntoIterator<Item = &'a N>,
    ) -> Signature {
        let tensor = |name: &'a N| without_zero_port(name.as_ref());
        let mut text = String::new();
        push(&mut text, sorted(feeds.into_iter().map(tensor)));
        push(&mut text, distinct(fetches.into_iter().map(tensor)));
        push(&mut text, distinct(targets.into_iter().map(AsRef::as_ref)));
        Signature(text.into())
    }

    /// Returns the signature of the same step with watched tensors: other watches need another plan.
    pub(crate) fn watched_by(self, options: Option<&pb::DebugOptions>) -> Signature {
        match options {
            Some(options) => {
                let watches = options.debug_tensor_watch_opts.iter().map(|watch| format!("{watch:?}"));
                Signature(format!("{}{}", self.0, watches.collect::<String>()).into())
            }
            None => self,
        }
    }
}

/// Returns the names in ascending order.
fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names
}

/// Returns the names in ascending order, without duplicates.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names = sorted(names);
    names.dedup();
    names
}

/// Appends a list of names to the signature's text, with a separator after each name and after the list.
fn push(text: &mut String, names: Vec<&str>) {
    for name in names {
        text.push_str(name);
        text.push('\u{1}');
    }
    text.push('\u{2}');
}

/// Returns a tensor's name without the port 0, because `p:0` and `p` are one tensor.
pub(crate) fn without_zero_port(name: &str) -> &str {
    name.strip_suffix(":0").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(feeds: &[&str], fetches: &[&str], targets: &[&str]) -> Signature {
        Signature::new(feeds.iter().copied(), fetches.iter().copied(), targets.iter().copied())
    }

    #[test]
    fn order_spelling_and_repeated_fetches_do_not_matter() {
        assert_eq!(
            signature(&["a:0", "b"], &["c:1"], &["d"]),
            signature(&["b:0", "a"], &["c:1", "c:1"], &["d", "d"])
        );
        assert_ne!(signature(&["a:0", "a"], &["c"], &[]), signature(&["a"], &["c"], &[]));
        assert_ne!(signature(&["a"], &[], &[]), signature(&[], &["a"], &[]));
        assert_ne!(signature(&["a", "b"], &[], &[]), signature(&["ab"], &[], &[]));
        assert_ne!(signature(&["a:1"], &[], &[]), signature(&["a"], &[], &[]));
    }
}

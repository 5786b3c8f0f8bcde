//! File name patterns: `*`, `?` and `[…]` match within one component of a path, and `\` escapes the next
//! character.

use crate::error::Result;
use crate::store;
use std::path::{Path, PathBuf};

/// Returns the files and folders whose paths match, sorted. A missing folder counts as empty. For a name with
/// a scheme, only the path may contain patterns, not the scheme and the host.
pub fn matching(pattern: &str) -> Result<Vec<String>> {
    if pattern.is_empty() {
        return Ok(Vec::new());
    }
    let store = store::store_of(pattern)?;
    let root = store::root(Path::new(pattern)).unwrap_or_default();
    let path = &pattern[root.len()..];
    let mut found = vec![match root {
        "" if path.starts_with('/') => PathBuf::from("/"),
        root => PathBuf::from(root),
    }];
    let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
    while let Some(part) = parts.next() {
        let mut next = Vec::new();
        for folder in found {
            if !part.contains(['*', '?', '[', '\\']) {
                let path = folder.join(part);
                // The existence of a folder is checked when its entries are listed.
                if parts.peek().is_some() || store.exists(&path)? {
                    next.push(path);
                }
                continue;
            }
            let names = store.list(&folder)?.into_iter();
            let matching = names.filter(|name| is_match(part.as_bytes(), name.to_string_lossy().as_bytes()));
            next.extend(matching.map(|name| folder.join(name)));
        }
        found = next;
    }
    let mut names: Vec<String> = found.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Returns whether a name matches a pattern, in time proportional to the product of their lengths.
pub fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The state to resume from if the pattern after the last star does not match: the pattern index after the
    // star, and the number of bytes of the name up to the end of the star's match.
    let mut star = None;
    loop {
        if p == pattern.len() && n == name.len() {
            return true;
        }
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, n));
            continue;
        }
        if let Some(&byte) = name.get(n)
            && let Some(next) = step(pattern, p, byte)
        {
            p = next;
            n += 1;
            continue;
        }
        match star {
            Some((after, taken)) if taken < name.len() => {
                p = after;
                n = taken + 1;
                star = Some((after, n));
            }
            _ => return false,
        }
    }
}

/// Returns the pattern index after the element at `p` if that element matches the byte.
fn step(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        b'[' => match class(&pattern[p + 1..], byte) {
            Some((holds, len)) => holds.then_some(p + 1 + len),
            None => (byte == b'[').then_some(p + 1),
        },
        literal => (literal == byte).then_some(p + 1),
    }
}

/// Returns whether a byte belongs to the character class at the start of `text`, and the length of the class
/// including its `]`; `None` if the class is not closed.
fn class(text: &[u8], byte: u8) -> Option<(bool, usize)> {
    let is_negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut i = usize::from(is_negated);
    let first = i;
    let mut holds = false;
    loop {
        let mut low = *text.get(i)?;
        if low == b']' && i > first {
            return Some((holds != is_negated, i + 1));
        }
        if low == b'\\' {
            i += 1;
            low = *text.get(i)?;
        }
        i += 1;
        let mut high = low;
        if text.get(i) == Some(&b'-') && text.get(i + 1).is_some_and(|&b| b != b']') {
            high = text[i + 1];
            i += 2;
        }
        holds |= (low..=high).contains(&byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::testing::TempDir;
    use std::fs;

    #[test]
    fn names_match_like_in_a_shell() {
        let yes = [
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abbc"),
            ("a*b*c", "axxbyybc"),
            ("b-?????-of-00005", "b-00003-of-00005"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            (r"\*", "*"),
            ("[", "["),
        ];
        for (pattern, name) in yes {
            assert!(is_match(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a*c", "ab"), ("?", ""), ("[a-c]", "d"), (r"\*", "a"), ("", "a"), ("[^a]", "a")]
        {
            assert!(!is_match(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        let stars = "*a".repeat(1000);
        assert!(!is_match(stars.as_bytes(), "a".repeat(999).as_bytes()));
    }

    #[test]
    fn files_are_found_in_several_folders() -> Result<()> {
        let dir = TempDir::new()?;
        for name in ["x1/a", "x1/b", "x2/a", "y/a"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap_or(dir.path())).map_err(|e| Error::file(&path, &e))?;
            fs::write(&path, b"").map_err(|e| Error::file(&path, &e))?;
        }
        let root = dir.path().display().to_string();
        let found = |pattern: &str| matching(&format!("{root}/{pattern}"));
        assert_eq!(found("x*/a")?, [format!("{root}/x1/a"), format!("{root}/x2/a")]);
        assert_eq!(found("x1/a")?, [format!("{root}/x1/a")]);
        assert_eq!(found("none/*")?, <[String; 0]>::default());
        assert_eq!(found("x1/a/*")?, <[String; 0]>::default());
        assert_eq!(matching("")?, <[String; 0]>::default());
        Ok(())
    }
}

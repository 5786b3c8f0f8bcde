//! Checks of the language of comments: sentences must name their subject, and public functions must have doc comments.
//!
//! Each folder has ceilings, which a change may only lower. `cargo test --test source prose -- --nocapture` prints the
//! counts.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// The largest allowed percentages of faults in the comments and functions of a folder.
struct Ceiling {
    folder: &'static str,
    /// Percentage of sentences that open with one of [`OPENERS`].
    opened: f64,
    /// Percentage of sentences that contain the word "what".
    what: f64,
    /// Percentage of public functions without a doc comment.
    undocumented: f64,
}

const CEILINGS: &[Ceiling] = &[
    ceiling("visit", 0.5, 0.5, 0.0),
    ceiling("graph", 0.5, 0.5, 0.0),
    ceiling("placer", 0.5, 0.5, 0.0),
    ceiling("checkpoint", 0.5, 0.5, 0.0),
    ceiling("device", 0.5, 0.5, 0.0),
    ceiling("kernels", 0.5, 0.5, 0.0),
    ceiling("cuda", 0.5, 0.5, 0.0),
    ceiling("executor", 0.5, 0.5, 0.0),
    ceiling("proto", 0.5, 0.5, 0.0),
    ceiling("rpc", 0.5, 0.5, 0.0),
    ceiling("worker", 0.5, 0.5, 0.0),
    ceiling("master", 0.5, 0.5, 0.0),
    ceiling("client", 0.5, 0.5, 0.0),
    ceiling("train", 0.5, 0.5, 0.0),
    ceiling("src", 0.5, 0.5, 0.0),
    ceiling("tests", 0.5, 0.5, 0.0),
    ceiling("benches", 0.5, 0.5, 0.0),
    ceiling("examples", 0.5, 0.5, 0.0),
];

/// Words that open a sentence without naming its subject.
const OPENERS: &[&str] = &["what", "whatever", "who", "whoever", "whose", "that", "of", "as", "whether"];

/// Number of words of the shortest sentence that is counted.
const MIN_WORDS: usize = 3;

const fn ceiling(folder: &'static str, opened: f64, what: f64, undocumented: f64) -> Ceiling {
    Ceiling { folder, opened, what, undocumented }
}

#[derive(Default)]
struct Counts {
    sentences: usize,
    opened: usize,
    what: usize,
    functions: usize,
    undocumented: usize,
}

impl Counts {
    fn add_sentence(&mut self, sentence: &str) {
        let words: Vec<String> =
            sentence.split_whitespace().map(plain_word).filter(|w| !w.is_empty()).collect();
        if words.len() < MIN_WORDS {
            return;
        }
        self.sentences += 1;
        self.opened += usize::from(OPENERS.contains(&words[0].as_str()));
        self.what += usize::from(words.iter().any(|w| w == "what"));
    }

    fn add_source(&mut self, text: &str, is_rust: bool) {
        comment_blocks(text).iter().flat_map(|block| sentences(block)).for_each(|s| self.add_sentence(&s));
        if is_rust {
            let (functions, undocumented) = public_functions(text);
            self.functions += functions;
            self.undocumented += undocumented;
        }
    }

    fn add_folder(&mut self, folder: &Path) -> Result<(), Box<dyn Error>> {
        for path in files_below(folder)? {
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            if matches!(extension, "rs" | "cu") {
                self.add_source(&fs::read_to_string(&path)?, extension == "rs");
            }
        }
        Ok(())
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// Returns the word in lower case without punctuation around it.
fn plain_word(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            // Generated code is skipped, because its comments are not written by hand.
            if path.ends_with("src/generated") {
                continue;
            }
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the blocks of consecutive comment lines, without comment markers. Code fences, headings and `SAFETY:` are
/// left out, and an item of a list begins a new block.
fn comment_blocks(text: &str) -> Vec<String> {
    let (mut blocks, mut block, mut is_code) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            blocks.push(std::mem::take(&mut block));
            is_code = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        if comment.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !comment.starts_with('|') {
            if comment.is_empty() || comment.starts_with('#') || comment.starts_with("- ") {
                blocks.push(std::mem::take(&mut block));
            }
            if !comment.starts_with('#') {
                block.push_str(comment.trim_start_matches("- ").trim_start_matches("SAFETY:"));
                block.push(' ');
            }
        }
    }
    blocks.push(block);
    blocks
}

/// Returns the sentences of a block, which is cut after each full stop, question mark or exclamation mark before a
/// space.
fn sentences(block: &str) -> Vec<String> {
    let (mut found, mut start) = (Vec::new(), 0);
    let bytes = block.as_bytes();
    for (i, pair) in bytes.windows(2).enumerate() {
        let ends = matches!(pair[0], b'.' | b'!' | b'?') && pair[1] == b' ';
        if ends && !["e.g", "i.e"].iter().any(|short| block[..i].ends_with(short)) {
            found.push(block[start..=i].to_owned());
            start = i + 1;
        }
    }
    found.push(block[start..].to_owned());
    found
}

/// Returns the number of public functions, and the number of public functions without a doc comment.
fn public_functions(text: &str) -> (usize, usize) {
    let (mut functions, mut undocumented, mut is_documented) = (0, 0, false);
    for line in text.lines().map(str::trim) {
        let is_function = ["pub fn ", "pub const fn ", "pub async fn ", "pub unsafe fn "]
            .iter()
            .any(|p| line.starts_with(p));
        if is_function {
            functions += 1;
            undocumented += usize::from(!is_documented);
        }
        // An attribute may stand between a comment and its function.
        is_documented = line.starts_with("///") || (is_documented && line.starts_with("#["));
    }
    (functions, undocumented)
}

#[test]
fn sentences_name_their_subject_and_public_functions_have_docs() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut failures = Vec::new();
    eprintln!(
        "{:<12}{:>10}{:>10}{:>10}{:>10}{:>15}",
        "folder", "sentences", "opened %", "what %", "pub fn", "undocumented %"
    );
    for Ceiling { folder, opened, what, undocumented } in CEILINGS {
        let mut counts = Counts::default();
        counts.add_folder(&root.join(folder))?;
        let found = [
            ("sentences that open without a subject", percent(counts.opened, counts.sentences), *opened),
            ("sentences that contain \"what\"", percent(counts.what, counts.sentences), *what),
            ("public functions without docs", percent(counts.undocumented, counts.functions), *undocumented),
        ];
        let [(_, opened, _), (_, what, _), (_, undocumented, _)] = found;
        let (sentences, functions) = (counts.sentences, counts.functions);
        eprintln!("{folder:<12}{sentences:>10}{opened:>10.1}{what:>10.1}{functions:>10}{undocumented:>15.1}");
        let over = found.iter().filter(|(_, share, ceiling)| share > ceiling);
        failures.extend(
            over.map(|(name, share, ceiling)| format!("{folder}: {share:.1} % {name}, over {ceiling} %")),
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

#[test]
fn sentences_are_cut_and_counted() {
    let text = "//! What goes first. The second names `a.b` and i.e. one thing.\n//! # Errors\n\n// - An item.\n// ```\n// Of code.\n// ```\n";
    let mut counts = Counts::default();
    counts.add_source(text, true);
    assert_eq!((counts.sentences, counts.opened, counts.what), (2, 1, 1));
}

#[test]
fn functions_are_counted_with_their_docs() {
    let text = "/// Documented.\n#[inline]\npub fn a() {}\npub fn b() {}\npub(crate) fn c() {}\n";
    assert_eq!(public_functions(text), (2, 1));
}

//! `anabranch ckpt inspect`: prints the tensors of a checkpoint.

use super::{Fallible, bytes_text, names, open, shown};
use crate::command::output;
use std::path::Path;

pub(super) fn run(path: &Path, values: Option<&str>, verify: bool) -> Fallible {
    let mut reader = open(path)?;
    let mut text = String::new();
    let mut total = 0u64;
    for (name, dtype, shape) in reader.tensors() {
        let bytes = (shape.num_elements() * dtype.size().unwrap_or(0)) as u64;
        total += bytes;
        text += &format!("{}  {dtype} {shape}  {}\n", shown(name), bytes_text(bytes));
    }
    text += &format!("{} tensors, {}\n", reader.tensors().count(), bytes_text(total));
    if verify {
        for name in names(&reader) {
            reader.read(&name)?;
        }
        text += "all checksums are right\n";
    }
    if let Some(name) = values {
        let tensor = reader.read(name.as_bytes())?;
        text += &format!("{name} = {}\n", tensor.summarize(-1));
    }
    Ok(output::print(&text)?)
}

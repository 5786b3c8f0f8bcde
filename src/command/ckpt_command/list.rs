//! `anabranch ckpt list`: lists the checkpoints of a folder.

use super::{Fallible, bytes_text};
use crate::command::output;
use checkpoint::bundle::Reader;
use std::path::Path;
use train::{CheckpointState, latest_checkpoint, step_of};

pub(super) fn run(folder: &Path) -> Fallible {
    let mut prefixes = train::checkpoint_prefixes(folder)?;
    let noted = CheckpointState::read(folder)?.all_model_checkpoint_paths;
    prefixes.extend(noted);
    if prefixes.is_empty() {
        return Err(format!("{}: there is no checkpoint", folder.display()).into());
    }
    prefixes.sort_by_key(|prefix| (step_of(prefix), prefix.clone()));
    prefixes.dedup();
    let newest = latest_checkpoint(folder)?;
    let mut text = String::new();
    for prefix in &prefixes {
        let state = match Reader::open(prefix).and_then(|mut reader| reader.check_extents().map(|()| reader))
        {
            Ok(reader) => {
                let bytes: u64 = reader
                    .tensors()
                    .map(|(_, dtype, shape)| (shape.num_elements() * dtype.size().unwrap_or(0)) as u64)
                    .sum();
                format!("{} tensors, {}", reader.tensors().count(), bytes_text(bytes))
            }
            Err(error) => format!("not whole: {error}"),
        };
        let mark = if newest.as_ref() == Some(prefix) { " (newest)" } else { "" };
        let name = prefix.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        text += &format!("{name}: {state}{mark}\n");
    }
    Ok(output::print(&text)?)
}

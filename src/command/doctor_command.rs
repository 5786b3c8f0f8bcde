//! `anabranch doctor`: lists the NVIDIA libraries that GPU support needs, and marks those that this machine has.

use crate::command::output;
use device::gpu_options::GpuSelection;
use std::fmt::Write;
use std::io;
use worker::gpus;

pub(crate) fn run() -> io::Result<()> {
    let mut text = String::new();
    for library in gpus::libraries() {
        let found = library.found.unwrap_or_else(|why| format!("not found: {why}"));
        let _ = writeln!(text, "{:<10} {found} ({})", library.name, library.purpose);
    }
    match gpus::find_gpus(&GpuSelection::All) {
        Ok(found) => found.iter().for_each(|gpu| text.push_str(&format!("{gpu}\n"))),
        Err(error) => {
            let _ = writeln!(text, "no GPU: {error}");
        }
    }
    output::print(&text)
}

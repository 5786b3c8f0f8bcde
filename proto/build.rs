//! Compiles `protos/` and generates messages, clients and servers from them.

use std::{error::Error, fs, io, path::PathBuf};

/// Fields whose bytes are shared with the buffer they were received in.
const SHARED_BYTES: [&str; 3] = [
    ".tensorflow.TensorProto.tensor_content",
    ".tensorflow.RecvBufRespExtra.tensor_content",
    ".google.protobuf.Any.value",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=protos");
    let mut files =
        fs::read_dir("protos")?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.sort();
    let descriptors = protox::compile(files, ["protos"])?;

    let mut builder = tonic_prost_build::configure()
        // `Any` is generated too, so that its value can be shared bytes.
        .compile_well_known_types(true)
        // Ordered maps: the same message is always the same bytes.
        .btree_map(".");
    for field in SHARED_BYTES {
        builder = builder.bytes(field);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}

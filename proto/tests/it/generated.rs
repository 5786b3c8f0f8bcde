//! Tests that `src/generated/` is up to date: messages, clients, servers and the table of option fields,
//! compiled from `protos/`. The generated code is committed, so that a build needs no compiler of protocol
//! buffers; `UPDATE_PROTOS=1 cargo test -p anabranch-proto` rewrites it.

use prost::Message as _;
use protox::prost_reflect::{DescriptorPool, Kind};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, error::Error, fs, io};

/// Fields whose bytes share the receive buffer.
const SHARED_BYTES: [&str; 3] = [
    ".tensorflow.TensorProto.tensor_content",
    ".tensorflow.RecvBufRespExtra.tensor_content",
    ".google.protobuf.Any.value",
];

/// Fields that hold the graph of a request, generated as bytes. Graphs are large, and `src/convert/graph`
/// converts their bytes directly, without an intermediate message. The wire format is the same.
const GRAPHS: [&str; 3] = [
    ".tensorflow.CreateSessionRequest.graph_def",
    ".tensorflow.ExtendSessionRequest.graph_def",
    ".tensorflow.RegisterGraphRequest.graph_def",
];

/// Number of the type `bytes` in descriptors.
const TYPE_BYTES: i32 = 12;

/// Messages of options, for which `src/fields.rs` lists the fields that are set.
const OPTIONS: [&str; 2] = ["tensorflow.ConfigProto", "tensorflow.RunOptions"];

#[test]
fn generated_code_is_current() -> Result<(), Box<dyn Error>> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    if env::var_os("UPDATE_PROTOS").is_some() {
        return generate(&committed);
    }
    let current = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    if current.exists() {
        fs::remove_dir_all(&current)?;
    }
    fs::create_dir_all(&current)?;
    generate(&current)?;
    let rewrites = "UPDATE_PROTOS=1 cargo test -p anabranch-proto rewrites it";
    assert_eq!(names(&current)?, names(&committed)?, "src/generated/ has other files: {rewrites}");
    for name in names(&current)? {
        let same = fs::read(current.join(&name))? == fs::read(committed.join(&name))?;
        assert!(same, "src/generated/{} is stale: {rewrites}", name.display());
    }
    Ok(())
}

/// The descriptors of the messages that TensorFlow's servers know by name: those of `protos/`, and of examples. The CPU's
/// kernels, which use no generated code, include the file.
#[test]
fn descriptors_for_kernels_are_current() -> Result<(), Box<dyn Error>> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protos = crate_folder.join("protos");
    let mut files =
        fs::read_dir(&protos)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.push(crate_folder.join("tests/it/examples.proto"));
    files.sort();
    let mut descriptors = protox::compile(files, [protos, crate_folder.join("tests/it")])?;
    descriptors.file.retain(|file| file.package() != "anabranch");
    for file in &mut descriptors.file {
        file.service.clear();
        file.source_code_info = None;
    }
    let current = descriptors.encode_to_vec();
    let committed = crate_folder.join("../kernels/src/protobuf/local.binpb");
    if env::var_os("UPDATE_PROTOS").is_some() {
        return Ok(fs::write(committed, current)?);
    }
    let rewrites = "UPDATE_PROTOS=1 cargo test -p anabranch-proto rewrites it";
    assert!(fs::read(committed)? == current, "kernels/src/protobuf/local.binpb is stale: {rewrites}");
    Ok(())
}

/// Returns the names of the files in a folder.
fn names(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Writes the code of all messages and services into the folder.
fn generate(folder: &Path) -> Result<(), Box<dyn Error>> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("protos");
    let mut files =
        fs::read_dir(&protos)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.sort();
    let mut descriptors = protox::compile(files, [&protos])?;

    let pool = DescriptorPool::from_file_descriptor_set(descriptors.clone())?;
    fs::write(folder.join("fields.rs"), options_table(&pool)?)?;
    fs::write(folder.join("wire_messages.rs"), wire_messages(&pool)?)?;

    let mut left = GRAPHS.len();
    for file in &mut descriptors.file {
        let package = file.package().to_owned();
        for message in &mut file.message_type {
            let name = message.name().to_owned();
            for field in &mut message.field {
                let path = format!(".{package}.{name}.{}", field.name());
                if GRAPHS.contains(&path.as_str()) {
                    (field.r#type, field.type_name) = (Some(TYPE_BYTES), None);
                    left -= 1;
                }
            }
        }
    }
    if left > 0 {
        return Err(format!("{left} of the fields {GRAPHS:?} are not there").into());
    }

    let mut builder = tonic_prost_build::configure()
        .out_dir(folder)
        .codec_path("crate::codec::MessageCodec")
        // `Any` is generated too, so that its value can share the receive buffer.
        .compile_well_known_types(true)
        // Ordered maps make the encoding of a message deterministic.
        .btree_map(".");
    for field in SHARED_BYTES.iter().chain(&GRAPHS) {
        builder = builder.bytes(field);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}

/// Returns the Rust source of a list of the requests and responses of all services.
fn wire_messages(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let mut paths = BTreeSet::new();
    for method in pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()) {
        for message in [method.input(), method.output()] {
            let module = match message.package_name() {
                "tensorflow" => "pb",
                "anabranch" => "replication",
                other => return Err(format!("the package {other} has no module").into()),
            };
            paths.insert(format!("crate::{module}::{}", message.name()));
        }
    }
    let mut list = String::from("wire_messages! {\n");
    for path in paths {
        writeln!(list, "    {path},")?;
    }
    list.push_str("}\n");
    Ok(list)
}

/// Returns the Rust source of a constant with the fields of the option messages and of the messages within
/// them.
fn options_table(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let mut table = String::from("pub(super) const MESSAGES: &[Message] = &[\n");
    let mut open = OPTIONS.map(str::to_owned).to_vec();
    let mut next = 0;
    while let Some(name) = open.get(next).cloned() {
        next += 1;
        let message = pool.get_message_by_name(&name).ok_or_else(|| format!("there is no message {name}"))?;
        writeln!(table, "    ({name:?}, &[")?;
        for field in message.fields() {
            let (type_name, is_entered) = match field.kind() {
                Kind::Message(inner) => (inner.full_name().to_owned(), !field.is_list() && !field.is_map()),
                Kind::Enum(kind) => (kind.full_name().to_owned(), false),
                _ => (String::new(), false),
            };
            writeln!(
                table,
                "        ({}, {:?}, {type_name:?}, {is_entered}),",
                field.number(),
                field.name()
            )?;
            if is_entered && !open.contains(&type_name) {
                open.push(type_name);
            }
        }
        table.push_str("    ]),\n");
    }
    table.push_str("];\n");
    Ok(table)
}

//! Compares our `.proto` files with the descriptors of a TensorFlow 2.21 build, in both directions.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use protox::{
    Compiler,
    file::{ChainFileResolver, File, FileResolver, GoogleFileResolver},
    prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, Syntax},
};
use serde_json::Value;

/// The compared properties: for the name of each message, field, enum value and method, a description of it.
type Properties = BTreeMap<String, String>;

#[test]
fn protos_match_tensorflows() {
    let differences = differences(&tensorflow_properties(), &our_properties(None));
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

/// Checks that [`differences`] finds every kind of difference: each alteration of our files must be reported
/// under the right name.
#[test]
fn every_kind_of_difference_is_reported() {
    let peer = tensorflow_properties();
    let check = |file: &'static str, from: &'static str, to: &'static str, expected: &str| {
        let found = differences(&peer, &our_properties(Some(Alteration { file, from, to })));
        assert!(found.iter().any(|line| line.contains(expected)), "{from} as {to} in {file} gave {found:?}");
    };
    check(
        "tensor.proto",
        "tensor_content = 4",
        "tensor_content = 24",
        "field tensorflow.TensorProto.tensor_content",
    );
    check(
        "tensor.proto",
        "bytes tensor_content",
        "string tensor_content",
        "field tensorflow.TensorProto.tensor_content",
    );
    check("tensor.proto", "repeated bool bool_val", "bool bool_val", "field tensorflow.TensorProto.bool_val");
    check(
        "tensor.proto",
        "tensors = 3;",
        "tensors = 3; int32 more = 4;",
        "field tensorflow.VariantTensorDataProto.more",
    );
    check(
        "tensor.proto",
        "float_val = 5;",
        "float_val = 5 [packed = false];",
        "field tensorflow.TensorProto.float_val",
    );
    check("node_def.proto", "string device = 4;", "", "field tensorflow.NodeDef.device");
    check(
        "node_def.proto",
        "string device = 4",
        "optional string device = 4",
        "field tensorflow.NodeDef.device",
    );
    check("node_def.proto", "string op = 2", "string kind = 2", "field tensorflow.NodeDef.kind");
    check(
        "node_def.proto",
        "map<string, AttrValue>",
        "map<int32, AttrValue>",
        "tensorflow.NodeDef.AttrEntry.key",
    );
    check(
        "node_def.proto",
        "map<string, AttrValue>",
        "repeated AttrValue",
        "message tensorflow.NodeDef.AttrEntry",
    );
    check("full_type.proto", "oneof attr", "oneof other", "field tensorflow.FullTypeDef.s");
    check("graph.proto", "[deprecated = true]", "", "field tensorflow.GraphDef.version");
    check("worker.proto", "reserved 4;", "", "message tensorflow.CompleteGroupRequest");
    check(
        "master.proto",
        "message ResetResponse {}",
        "message ResetResponse {} message Extra {}",
        "message tensorflow.Extra",
    );
    check(
        "graph_debug_info.proto",
        "repeated string files",
        "optional string files",
        "field tensorflow.GraphDebugInfo.files",
    );
    check(
        "graph_debug_info.proto",
        "[packed = true]",
        "",
        "field tensorflow.GraphDebugInfo.StackTrace.frame_id",
    );
    check("types.proto", "DT_HALF = 19", "DT_HALF = 40", "value tensorflow.DataType.DT_HALF");
    check("types.proto", "DT_HALF = 19;", "DT_HALF = 19; DT_MORE = 41;", "value tensorflow.DataType.DT_MORE");
    check("master_service.proto", "rpc Reset(", "rpc ResetAll(", "method tensorflow.MasterService.Reset");
    check(
        "worker_service.proto",
        "(GetStatusResponse)",
        "(stream GetStatusResponse)",
        "WorkerService.GetStatus",
    );
    check(
        "core_platform_payloads.proto",
        "package tensorflow.core.platform;",
        "package tensorflow.core;",
        "message tensorflow.core.ErrorSourceProto",
    );
}

/// Returns one line for each property that differs between TensorFlow's files (`peer`) and ours, or that one side
/// lacks.
fn differences(peer: &Properties, ours: &Properties) -> Vec<String> {
    let missing = peer.iter().filter(|(name, _)| !ours.contains_key(*name));
    let extra = ours.iter().filter(|(name, _)| !peer.contains_key(*name));
    let changed = peer
        .iter()
        .filter_map(|(name, property)| Some((name, property, ours.get(name).filter(|o| *o != property)?)));
    missing
        .map(|(name, property)| format!("missing: {name}: {property}"))
        .chain(extra.map(|(name, property)| format!("extra: {name}: {property}")))
        .chain(changed.map(|(name, peer, ours)| format!("differs: {name}: peer {peer}; ours {ours}")))
        .collect()
}

// The properties of TensorFlow's messages, which tests/it/descriptors.json describes.

fn tensorflow_properties() -> Properties {
    let text =
        fs::read_to_string(root().join("tests/it/descriptors.json")).expect("descriptors.json is readable");
    let all: Value = serde_json::from_str(&text).expect("descriptors.json is JSON");
    let mut properties = Properties::new();
    for (name, message) in entries(&all["messages"]) {
        let syntax = string(&message["syntax"]);
        let reserved =
            array(&message["reserved_ranges"]).iter().map(|range| (int(&range[0]), int(&range[1])));
        let reserved_names = array(&message["reserved_names"]).iter().map(string);
        let property = message_property(
            syntax,
            message["map_entry"].as_bool().expect("a boolean"),
            reserved.collect(),
            reserved_names.collect(),
            array(&message["oneofs"]).iter().map(string).collect(),
        );
        properties.insert(format!("message {name}"), property);
        for field in array(&message["fields"]) {
            let kind = field.get("type_name").map_or(string(&field["type"]), string);
            let repeated = string(&field["label"]) == "repeated";
            let packable = !matches!(string(&field["type"]), "message" | "string" | "bytes");
            let packed = field.get("packed").map_or(syntax == "proto3", |packed| packed == true);
            let property = FieldProperties {
                number: int(&field["number"]),
                label: string(&field["label"]),
                kind,
                packed: repeated && packable && packed,
                deprecated: field.get("deprecated").is_some_and(|deprecated| deprecated == true),
                oneof: field.get("oneof").map(string),
            };
            properties.insert(format!("field {name}.{}", string(&field["name"])), format!("{property:?}"));
        }
    }
    for (name, declared) in entries(&all["enums"]) {
        for value in array(&declared["values"]) {
            properties.insert(format!("value {name}.{}", string(&value[0])), int(&value[1]).to_string());
        }
    }
    for (service, methods) in entries(&all["services"]) {
        for (name, method) in entries(methods) {
            let property = method_property(
                string(&method["path"]),
                string(&method["request"]),
                string(&method["response"]),
            );
            properties.insert(format!("method {service}.{name}"), property);
        }
    }
    properties
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().expect("an object").iter()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().expect("an array")
}

fn string(value: &Value) -> &str {
    value.as_str().expect("a string")
}

fn int(value: &Value) -> i64 {
    value.as_i64().expect("an integer")
}

// The properties of our messages: the test compiles the files in protos/.

fn our_properties(alteration: Option<Alteration>) -> Properties {
    let pool = compile(alteration);
    let mut properties = Properties::new();
    for message in pool.all_messages() {
        let name = message.full_name();
        properties.insert(format!("message {name}"), our_message_property(&message));
        for field in message.fields() {
            properties.insert(format!("field {name}.{}", field.name()), our_field_property(&field));
        }
    }
    for declared in pool.all_enums() {
        for value in declared.values() {
            properties.insert(
                format!("value {}.{}", declared.full_name(), value.name()),
                value.number().to_string(),
            );
        }
    }
    for service in pool.services() {
        for method in service.methods() {
            let (service, name) = (service.full_name(), method.name());
            let (request, response) = (method.input(), method.output());
            let path = format!("/{service}/{name}");
            let mut property = method_property(&path, request.full_name(), response.full_name());
            if method.is_client_streaming() || method.is_server_streaming() {
                property.push_str(", streaming");
            }
            properties.insert(format!("method {service}.{name}"), property);
        }
    }
    properties
}

fn our_message_property(message: &MessageDescriptor) -> String {
    let syntax = match message.parent_file().syntax() {
        Syntax::Proto2 => "proto2",
        Syntax::Proto3 => "proto3",
    };
    let oneofs: Vec<_> = message.oneofs().collect();
    message_property(
        syntax,
        message.is_map_entry(),
        message.reserved_ranges().map(|range| (i64::from(range.start), i64::from(range.end) - 1)).collect(),
        message.reserved_names().collect(),
        oneofs.iter().map(|oneof| oneof.name()).collect(),
    )
}

fn our_field_property(field: &FieldDescriptor) -> String {
    let (kind, oneof) = (field.kind(), field.containing_oneof());
    let options = field.field_descriptor_proto().options.as_ref();
    let packed = options.and_then(|options| options.packed);
    let packable = !matches!(kind, Kind::Message(_) | Kind::String | Kind::Bytes);
    let proto3 = field.parent_file().syntax() == Syntax::Proto3;
    let kind = match &kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(declared) => declared.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    let property = FieldProperties {
        number: i64::from(field.number()),
        label: match field.cardinality() {
            Cardinality::Optional => "optional",
            Cardinality::Required => "required",
            Cardinality::Repeated => "repeated",
        },
        kind: &kind,
        // `field.is_packed()` ignores the option `packed`, because it is computed before the option is read.
        packed: field.is_list() && packable && packed.unwrap_or(proto3),
        deprecated: options.is_some_and(|options| options.deprecated()),
        oneof: oneof.as_ref().map(|oneof| oneof.name()),
    };
    format!("{property:?}")
}

/// A replacement of text in one file before it is compiled.
#[derive(Debug)]
struct Alteration {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

/// A reader of the files of a folder that alters one of them.
#[derive(Debug)]
struct Sources {
    folder: PathBuf,
    alteration: Option<Alteration>,
}

impl FileResolver for Sources {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        path.to_str().map(str::to_owned)
    }

    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let mut source =
            fs::read_to_string(self.folder.join(name)).map_err(|_| protox::Error::file_not_found(name))?;
        if let Some(Alteration { from, to, .. }) = self.alteration.as_ref().filter(|a| a.file == name) {
            assert!(source.contains(from), "{name} has no {from}");
            source = source.replacen(from, to, 1);
        }
        File::from_source(name, &source)
    }
}

fn compile(alteration: Option<Alteration>) -> DescriptorPool {
    let folder = root().join("protos");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("protos is a folder")
        .map(|entry| entry.expect("an entry").file_name())
        // The messages between our own processes have no counterpart in TensorFlow.
        .filter(|file| file != "replication.proto")
        .collect();
    files.sort();
    let mut resolver = ChainFileResolver::new();
    resolver.add(Sources { folder, alteration });
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true);
    compiler.open_files(files).unwrap_or_else(|error| panic!("protos must compile: {error}"));
    compiler.descriptor_pool()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

// Formatting of properties as text, for both TensorFlow's messages and ours.

/// The compared properties of a field.
#[derive(Debug)]
#[expect(dead_code, reason = "read by Debug alone")]
struct FieldProperties<'a> {
    number: i64,
    label: &'a str,
    kind: &'a str,
    packed: bool,
    deprecated: bool,
    oneof: Option<&'a str>,
}

fn message_property(
    syntax: &str,
    map_entry: bool,
    mut reserved: Vec<(i64, i64)>,
    mut reserved_names: Vec<&str>,
    mut oneofs: Vec<&str>,
) -> String {
    reserved.sort();
    reserved_names.sort();
    oneofs.sort();
    format!("{syntax}, map entry {map_entry}, reserved {reserved:?} {reserved_names:?}, oneofs {oneofs:?}")
}

fn method_property(path: &str, request: &str, response: &str) -> String {
    format!("{path}: {request} to {response}")
}

//! Tests that graphs are encoded and decoded without loss, and that bytes that are not a graph are rejected.

use anabranch_proto::convert::{
    Budget, DefaultAttrs, GRAPH_DEF_VERSION, attr_from_proto, attr_to_proto, extend_graph, graph_from_bytes,
    graph_from_proto, graph_to_proto,
};
use anabranch_proto::pb::{self, GraphDef, NodeDef, attr_value::Value};
use bytes::Bytes;
use expect_test::{Expect, expect};
use graph::{
    AttrList, AttrValue, Attrs, Code, DType, Error, FuncAttr, Graph, PartialShape, Result, Shape, Tensor,
};
use prost::Message;
use std::time::{Duration, Instant};

fn budget() -> Budget {
    Budget::new(1 << 24)
}

fn decode(bytes: &[u8]) -> Result<GraphDef> {
    GraphDef::decode(bytes).map_err(|e| Error::invalid(e.to_string()))
}

fn bytes(def: &GraphDef) -> Bytes {
    def.encode_to_vec().into()
}

/// Adds the nodes in `text` to the graph `before` through the wire format, and compares the result as text.
fn check(before: &str, text: &str, expected: Expect) -> Result<()> {
    let graph = Graph::from_text(before)?;
    let versions = graph.versions.clone();
    let def = graph_to_proto(&graph, DefaultAttrs::Keep)?;
    let mut added = def.clone();
    added.node = Vec::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        added.node.push(node(line));
    }
    let graph = graph_from_proto(def, &mut budget())?;
    assert_eq!(graph.versions, versions);
    match extend_graph(graph, bytes(&added), &mut budget()) {
        Ok(graph) => expected.assert_eq(&graph.to_text()),
        Err(error) => expected.assert_eq(&format!("{:?}: {error}", error.code())),
    }
    Ok(())
}

/// Parses `name op input input …` as a node whose dtypes are all float.
fn node(line: &str) -> NodeDef {
    let mut words = line.split_whitespace().map(str::to_owned);
    let (name, op) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let float = pb::AttrValue { value: Some(Value::Type(DType::Float.number())) };
    let attr = if op == "NoOp" { Default::default() } else { [("T".to_owned(), float)].into() };
    NodeDef { name, op, input: words.collect(), attr, ..Default::default() }
}

const BASE: &str = "
    %versions producer=21 min_consumer=0
    x = Placeholder[dtype=float]
    y = Identity[T=float](x)
";

#[test]
fn an_extension_may_name_existing_nodes() -> Result<()> {
    check(
        BASE,
        "z AddV2 y:0 w ^init\n w Identity x\n init NoOp",
        expect![[r#"
            %versions producer=21 min_consumer=0
            x = Placeholder[dtype=float]
            y = Identity[T=float](x)
            z = AddV2[T=float](y, w, ^init)
            w = Identity[T=float](x)
            init = NoOp
        "#]],
    )
}

#[test]
fn invalid_nodes_are_named_in_errors() -> Result<()> {
    check(BASE, "y Identity x", expect!["InvalidArgument: Node name 'y' already exists in the Graph"])?;
    check(BASE, "z Identity nobody", expect!["InvalidArgument: Node 'z': Unknown input node 'nobody'"])?;
    check(
        BASE,
        "z AddV2 x",
        expect![[r#"
        InvalidArgument: NodeDef expected 2 inputs of Op<name=AddV2>, got 1
        	 [[{{node z}}]]"#]],
    )?;
    check(
        BASE,
        "z Identity x:1",
        expect![[r#"
        InvalidArgument: Connecting to invalid output 1 of source node x which has 1 outputs.
        	 [[{{node z}}]]"#]],
    )?;
    check(
        BASE,
        "a Identity b\n b Identity a",
        expect![
            "InvalidArgument: The graph has a cycle that no NextIteration closes, through node {{node a}}"
        ],
    )
}

/// Compares the error for an identity node with the attribute `name` set to `value`.
fn check_refusal(name: &str, value: Option<Value>, expected: Expect) -> Result<()> {
    let mut def = graph_to_proto(&Graph::from_text(BASE)?, DefaultAttrs::Keep)?;
    def.node[1].attr.insert(name.to_owned(), pb::AttrValue { value });
    let error = graph_from_proto(def, &mut budget()).map(|g| g.to_text()).map_err(|e| e.to_string());
    expected.assert_eq(&error.err().unwrap_or_default());
    Ok(())
}

#[test]
fn malformed_attributes_are_named_in_errors() -> Result<()> {
    check_refusal(
        "T",
        Some(Value::Type(101)),
        expect![[r#"
        AttrValue must not have reference type value of float_ref
        	 for attr 'T'
        	 [[{{node y}}]]"#]],
    )?;
    check_refusal(
        "T",
        Some(Value::Type(0)),
        expect![[r#"
        AttrValue has invalid DataType enum: 0
        	 for attr 'T'
        	 [[{{node y}}]]"#]],
    )?;
    check_refusal(
        "T",
        None,
        expect![[r#"
        AttrValue has no value
        	 for attr 'T'
        	 [[{{node y}}]]"#]],
    )?;
    let float = pb::TensorProto { dtype: 1, ..Default::default() };
    let huge = pb::tensor_shape_proto::Dim { size: 1 << 40, name: String::new() };
    let shape = pb::TensorShapeProto { dim: vec![huge], unknown_rank: false };
    let splat = pb::TensorProto { tensor_shape: Some(shape), float_val: vec![1.0], ..float };
    check_refusal(
        "other",
        Some(Value::Tensor(splat)),
        expect![[r#"
        a tensor of 4398046511104 bytes does not fit: 16777216 of 16777216 bytes are left for this message
        	 for attr 'other'
        	 [[{{node y}}]]"#]],
    )?;
    let mixed = pb::attr_value::ListValue { i: vec![1], b: vec![true], ..Default::default() };
    check_refusal(
        "other",
        Some(Value::List(mixed)),
        expect![[r#"
        AttrValue has a list with values of several kinds
        	 for attr 'other'
        	 [[{{node y}}]]"#]],
    )
}

#[test]
fn unsupported_and_contradicting_versions_are_refused() -> Result<()> {
    let with = |producer, min_consumer, bad: &[i32]| GraphDef {
        versions: Some(pb::VersionDef { producer, min_consumer, bad_consumers: bad.to_vec() }),
        ..Default::default()
    };
    for def in [with(1, GRAPH_DEF_VERSION + 1, &[]), with(1, 0, &[GRAPH_DEF_VERSION]), with(-1, 0, &[])] {
        assert_eq!(graph_from_proto(def, &mut budget()).map_err(|e| e.code()), Err(Code::InvalidArgument));
    }
    let base = Graph::from_text(BASE)?;
    let error =
        extend_graph(base.clone(), bytes(&with(22, 0, &[])), &mut budget()).map_err(|e| e.to_string());
    let expected = "Can't extend GraphDef at version 21 with graph at version 22.";
    assert_eq!(error.err().as_deref(), Some(expected));
    let joined = extend_graph(base, bytes(&with(21, 7, &[9, 3])), &mut budget())?;
    assert_eq!((joined.versions.min_consumer, &joined.versions.bad_consumers[..]), (7, &[3, 9][..]));
    Ok(())
}

fn function(name: &str, stateful: bool) -> pb::FunctionDef {
    let signature = pb::OpDef { name: name.into(), is_stateful: stateful, ..Default::default() };
    pb::FunctionDef { signature: Some(signature), ..Default::default() }
}

fn with_functions(function: Vec<pb::FunctionDef>) -> GraphDef {
    let library = pb::FunctionDefLibrary { function, ..Default::default() };
    GraphDef { library: Some(library), ..Default::default() }
}

#[test]
fn functions_are_merged_unless_they_contradict() -> Result<()> {
    let graph = graph_from_proto(with_functions(vec![function("f", false)]), &mut budget())?;
    let more = with_functions(vec![function("g", false), function("f", false)]);
    let joined =
        graph_to_proto(&extend_graph(graph.clone(), bytes(&more), &mut budget())?, DefaultAttrs::Keep)?;
    assert_eq!(joined, with_functions(vec![function("f", false), function("g", false)]));
    let other = with_functions(vec![function("f", true)]);
    assert!(extend_graph(graph, bytes(&other), &mut budget()).is_err());
    Ok(())
}

/// Returns a function that uses every field of FunctionDef.
fn function_with_all_fields() -> pb::FunctionDef {
    let value = |value| pb::AttrValue { value: Some(value) };
    let unreadable = || [("_ref".to_owned(), value(Value::Type(101)))];
    let arg = |name: &str| pb::op_def::ArgDef { name: name.into(), r#type: 1, ..Default::default() };
    let signature = pb::OpDef {
        name: "f".into(),
        input_arg: vec![
            pb::op_def::ArgDef { description: "says".into(), is_ref: true, ..arg("x") },
            pb::op_def::ArgDef { r#type: 0, type_attr: "T".into(), number_attr: "N".into(), ..arg("many") },
            pb::op_def::ArgDef { r#type: 0, type_list_attr: "L".into(), ..arg("all") },
        ],
        output_arg: vec![arg("y")],
        attr: vec![pb::op_def::AttrDef {
            name: "T".into(),
            r#type: "type".into(),
            default_value: Some(value(Value::Type(1))),
            has_minimum: true,
            minimum: 3,
            ..Default::default()
        }],
        summary: "a function".into(),
        is_stateful: true,
        is_commutative: true,
        control_output: vec!["done".into()],
        ..Default::default()
    };
    let node = pb::NodeDef {
        name: "n".into(),
        op: "NotAnOp".into(),
        input: vec!["x".into(), "many:1".into(), "^m".into()],
        device: "/JOB:strange".into(),
        attr: [("T".to_owned(), value(Value::Placeholder("T".into())))]
            .into_iter()
            .chain(unreadable())
            .collect(),
        experimental_type: Some(pb::FullTypeDef { type_id: 1, ..Default::default() }),
        ..Default::default()
    };
    pb::FunctionDef {
        signature: Some(signature),
        node_def: vec![node],
        ret: [("y".to_owned(), "n:out:0".to_owned())].into(),
        control_ret: [("done".to_owned(), "n".to_owned())].into(),
        attr: [("_noinline".to_owned(), value(Value::B(true)))].into_iter().chain(unreadable()).collect(),
        arg_attr: [(0, pb::function_def::ArgAttrs { attr: unreadable().into() })].into(),
        resource_arg_unique_id: [(1, 2)].into(),
    }
}

/// Fields of a GraphDef that this project does not interpret are preserved.
#[test]
fn uninterpreted_fields_are_preserved() -> Result<()> {
    let mut def = graph_to_proto(&Graph::from_text(BASE)?, DefaultAttrs::Keep)?;
    #[allow(deprecated)]
    {
        def.version = 5;
    }
    let trace = pb::graph_debug_info::StackTrace { frame_id: vec![7], ..Default::default() };
    let traces = [("x".to_owned(), trace)].into();
    def.debug_info = Some(pb::GraphDebugInfo { traces, files: vec!["f.py".into()], ..Default::default() });
    def.library = Some(pb::FunctionDefLibrary {
        function: vec![function_with_all_fields(), function("g", true)],
        gradient: vec![pb::GradientDef { function_name: "f".into(), gradient_func: "g".into() }],
        registered_gradients: vec![pb::RegisteredGradient {
            gradient_func: "g".into(),
            registered_op_type: "Op".into(),
        }],
    });
    def.node[0].device = "/JOB:strange".into();
    def.node[1].experimental_debug_info = Some(pb::node_def::ExperimentalDebugInfo {
        original_node_names: vec!["before".into()],
        original_func_names: vec![],
    });
    def.node[1].experimental_type = Some(pb::FullTypeDef { type_id: 1, ..Default::default() });
    let variant = pb::TensorProto { dtype: pb::DataType::DtVariant.into(), ..Default::default() };
    for (name, value) in [
        ("_unset", None),
        ("_ref", Some(Value::Type(101))),
        ("_variant", Some(Value::Tensor(variant))),
        ("_future", Some(Value::Type(99))),
        ("_known", Some(Value::F(-0.0))),
    ] {
        def.node[1].attr.insert(name.into(), pb::AttrValue { value });
    }
    let graph = graph_from_proto(decode(&def.encode_to_vec())?, &mut budget())?;
    assert_eq!(graph_to_proto(&graph, DefaultAttrs::Keep)?.encode_to_vec(), def.encode_to_vec());
    let text = graph.to_text();
    assert!(Graph::from_text(&text)? == graph, "{text}");
    Ok(())
}

/// The cache of decoded attributes must not give the opaque fields of one node to another node.
#[test]
fn nodes_with_equal_attributes_keep_their_opaque_fields() -> Result<()> {
    let mut def = graph_to_proto(&Graph::from_text(BASE)?, DefaultAttrs::Keep)?;
    let unset = pb::AttrValue { value: None };
    let number = |i| pb::AttrValue { value: Some(Value::I(i)) };
    for (i, attrs) in [
        vec![],
        vec![("_a", number(1))],
        vec![("_a", number(1))],
        vec![("_a", number(1)), ("_unset", unset.clone())],
        vec![("_a", number(1)), ("_unset", unset)],
        vec![("_a", number(1))],
        vec![("_a", number(2))],
        vec![],
    ]
    .into_iter()
    .enumerate()
    {
        let mut next = node(&format!("n{i} Identity x"));
        next.attr.extend(attrs.into_iter().map(|(name, value)| (name.to_owned(), value)));
        def.node.push(next);
    }
    let graph = graph_from_bytes(bytes(&def), &mut budget())?;
    assert_eq!(graph_to_proto(&graph, DefaultAttrs::Keep)?, def);
    Ok(())
}

/// Encoders may split a message into parts, in any order, and write unknown fields.
#[test]
fn fields_are_decoded_in_any_order() -> Result<()> {
    let def = graph_to_proto(&Graph::from_text(BASE)?, DefaultAttrs::Keep)?;
    let versions = |v| GraphDef { versions: Some(v), ..Default::default() }.encode_to_vec();
    let nodes = GraphDef { node: def.node.clone(), ..Default::default() }.encode_to_vec();
    let parts = [
        versions(pb::VersionDef { producer: 21, ..Default::default() }),
        vec![0xc2, 0x3e, 1, 7],
        nodes,
        versions(pb::VersionDef { min_consumer: 3, ..Default::default() }),
    ];
    let graph = graph_from_bytes(parts.concat().into(), &mut budget())?;
    assert_eq!((graph.len(), graph.versions.producer, graph.versions.min_consumer), (2, 21, 3));
    Ok(())
}

#[test]
fn default_attributes_can_be_stripped() -> Result<()> {
    let text = r#"x = Placeholder[dtype=float, shape=<*>]
v = VarHandleOp[container="", dtype=float, shape=<2>, shared_name="v"]
"#;
    let stripped = graph_to_proto(&Graph::from_text(text)?, DefaultAttrs::Strip)?;
    let names = |i: usize| stripped.node[i].attr.keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((names(0), names(1)), (vec!["dtype"], vec!["dtype", "shape", "shared_name"]));
    Ok(())
}

/// The SplitMix64 generator, which gives the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn value(&mut self, depth: usize) -> Result<AttrValue> {
        let tensor = |n: usize| Tensor::full(n as f32, Shape::new(&[n])?);
        Ok(match self.below(if depth < 3 { 12 } else { 10 }) {
            0 => AttrValue::Int(self.below(1 << 50) as i64 - (1 << 49)),
            1 => AttrValue::Float(f32::from_bits(self.below(1 << 32) as u32)),
            2 => AttrValue::Bool(self.below(2) == 0),
            3 => AttrValue::Str(vec![self.below(256) as u8; self.below(9)].into()),
            4 => AttrValue::Type(DType::ALL[self.below(DType::ALL.len())]),
            5 => AttrValue::Shape(
                [PartialShape::unknown(), PartialShape::from([None, Some(3)])][self.below(2)].clone(),
            ),
            6 => AttrValue::Tensor(tensor(self.below(200))?),
            7 => AttrValue::Placeholder("T".into()),
            8 => AttrValue::List(AttrList::Int(vec![self.below(9) as i64; self.below(4)])),
            9 => AttrValue::List(AttrList::Tensor(vec![tensor(self.below(3))?; self.below(3)])),
            10 => AttrValue::Func(self.func(depth)?),
            _ => AttrValue::List(AttrList::Func(vec![self.func(depth)?])),
        })
    }

    fn func(&mut self, depth: usize) -> Result<FuncAttr> {
        let mut attrs = Attrs::new();
        for i in 0..self.below(3) {
            attrs.set(&format!("a{i}"), self.value(depth + 1)?);
        }
        Ok(FuncAttr { name: "f".into(), attrs })
    }

    /// Returns a graph of `nodes` nodes: a placeholder, and Identity and AddV2 nodes with random attributes, devices
    /// and control inputs.
    fn graph(&mut self, nodes: usize) -> Result<Graph> {
        let mut def =
            GraphDef { node: vec![], ..graph_to_proto(&Graph::from_text(BASE)?, DefaultAttrs::Keep)? };
        def.node.push(NodeDef { op: "Placeholder".into(), ..node("n0 Placeholder") });
        let float = def.node[0].attr.remove("T").unwrap_or_default();
        def.node[0].attr.insert("dtype".into(), float);
        for i in 1..nodes {
            let mut line = match self.below(2) {
                0 => format!("n{i} Identity n{}", self.below(i)),
                _ => format!("n{i} AddV2 n{} n{}:0", self.below(i), self.below(i)),
            };
            for _ in 0..self.below(3) {
                line += &format!(" ^n{}", self.below(i));
            }
            let mut next = node(&line);
            next.device = ["", "/job:ps/task:1", "/cpu:0"][self.below(3)].into();
            for a in 0..self.below(3) {
                next.attr.insert(format!("_a{a}"), attr_to_proto(&self.value(0)?));
            }
            def.node.push(next);
        }
        // The decoder accepts nodes in any order, and preserves their order.
        for i in (1..def.node.len()).rev() {
            def.node.swap(i, self.below(i + 1));
        }
        graph_from_proto(def, &mut budget())
    }
}

#[test]
fn random_attributes_round_trip() -> Result<()> {
    let mut random = Random(3);
    for _ in 0..2000 {
        let value = random.value(0)?;
        assert_eq!(attr_from_proto(attr_to_proto(&value), &mut budget())?, value);
    }
    Ok(())
}

#[test]
fn random_graphs_round_trip() -> Result<()> {
    for seed in 0..60 {
        let graph = Random(seed).graph(30)?;
        assert_eq!(graph.len(), 30);
        let sent = graph_to_proto(&graph, DefaultAttrs::Keep)?.encode_to_vec();
        let received = graph_from_bytes(sent.clone().into(), &mut budget())?;
        assert!(received == graph, "seed {seed}");
        assert_eq!(graph_to_proto(&received, DefaultAttrs::Keep)?.encode_to_vec(), sent);
        let names = |g: &Graph| g.nodes().map(|(_, n)| n.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&received), names(&graph));
    }
    Ok(())
}

/// Truncated and corrupted encodings are decoded or rejected, within the memory of the budget.
#[test]
fn damaged_bytes_are_decoded_or_refused() -> Result<()> {
    let mut random = Random(9);
    let (mut read, mut refused) = (0, 0);
    for seed in 0..30 {
        let bytes = graph_to_proto(&Random(seed).graph(12)?, DefaultAttrs::Keep)?.encode_to_vec();
        for _ in 0..300 {
            let mut damaged = bytes.clone();
            if random.below(3) == 0 {
                damaged.truncate(random.below(bytes.len()));
            }
            for _ in 0..random.below(4) {
                if !damaged.is_empty() {
                    let at = random.below(damaged.len());
                    damaged[at] ^= 1 << random.below(8);
                }
            }
            match graph_from_bytes(damaged.into(), &mut budget()) {
                Ok(graph) => {
                    graph_to_proto(&graph, DefaultAttrs::Strip)?;
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(read > 100 && refused > 1000, "{read} read, {refused} refused");
    Ok(())
}

/// An algorithm that is quadratic in the number of nodes would take minutes. The linear algorithm takes a second in an
/// unoptimised build, and less than a twentieth of a second in an optimised build.
#[test]
fn large_graphs_are_read_in_linear_time() -> Result<()> {
    let graph = Random(5).graph(100)?;
    let pattern = graph_to_proto(&graph, DefaultAttrs::Keep)?;
    let mut def = GraphDef { node: vec![], ..pattern.clone() };
    for i in 0..400 {
        for node in &pattern.node {
            let mut node = node.clone();
            node.name = format!("part{i}/{}", node.name);
            for input in &mut node.input {
                *input = match input.strip_prefix('^') {
                    Some(name) => format!("^part{i}/{name}"),
                    None => format!("part{i}/{input}"),
                };
            }
            def.node.push(node);
        }
    }
    let start = Instant::now();
    let graph = graph_from_proto(def, &mut Budget::default())?;
    let taken = start.elapsed();
    assert_eq!(graph.len(), 40_000);
    let limit = Duration::from_secs(30);
    assert!(taken < limit, "{taken:?}");
    Ok(())
}

/// A client's graph may contain ops for its own use, which no step of the server needs.
#[test]
fn nodes_that_need_a_missing_op_are_left_out_and_named() -> Result<()> {
    let graph = Graph::from_text(BASE)?;
    let body = node("inner OpInAFunction");
    let with_body = pb::FunctionDef { node_def: vec![body], ..function("broken", false) };
    let caller = pb::FunctionDef { node_def: vec![node("call broken")], ..function("outer", false) };
    let mut added = with_functions(vec![with_body, caller, function("sound", false)]);
    added.node = ["b Identity a", "a NoSuchOp y", "c Identity y ^b", "d Identity y", "e outer", "f sound"]
        .map(node)
        .into();
    added.versions = Some(pb::VersionDef { producer: 21, ..Default::default() });
    let extended = extend_graph(graph, bytes(&added), &mut budget())?;
    let names: Vec<&str> = extended.nodes().map(|(_, node)| &*node.name).collect();
    assert_eq!(names, ["x", "y", "d", "f"]);
    let message = |node: &str| extended.unavailable.error(node).map(|error| error.to_string());
    let ops = "'NoSuchOp' in this server's binary. The node that uses it is {{node a}}; the graph's other missing ops are \
               OpInAFunction; docs/OPS.md lists the ops that are there";
    assert_eq!(message("a"), Some(format!("Op type not registered {ops}")));
    assert_eq!((message("c"), message("d")), (message("a"), None));
    assert!(
        message("e").is_some_and(|text| text.contains("'OpInAFunction'") && text.contains("{{node inner}}"))
    );

    let with_nodes = |lines: &[&str]| {
        let node = lines.iter().copied().map(node).collect();
        GraphDef { node, versions: added.versions.clone(), ..Default::default() }
    };
    let later = with_nodes(&["g Identity c", "h Identity d"]);
    let extended = extend_graph(extended, bytes(&later), &mut budget())?;
    assert!(extended.unavailable.contains("g") && extended.find("h").is_some());
    let twice = extend_graph(extended, bytes(&with_nodes(&["a Identity x"])), &mut budget())
        .map_err(|error| error.to_string());
    assert_eq!(twice.err().as_deref(), Some("Node name 'a' already exists in the Graph"));
    Ok(())
}

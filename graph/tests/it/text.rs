//! Tests of the text format: it prints and parses without loss, and errors name the line.

use anabranch_graph::{
    AttrList, AttrValue, Attrs, DType, Error, FuncAttr, Graph, Node, Output, PartialShape, ResourceHandle,
    Result, Shape, Tensor, ops,
};
use expect_test::{Expect, expect};

/// Checks the printed form of `text`, or the error of parsing it; the printed form is parsed again.
fn check(text: &str, expected: Expect) -> Result<()> {
    match Graph::from_text(text) {
        Err(error) => expected.assert_eq(&error.to_string()),
        Ok(graph) => {
            let printed = graph.to_text();
            expected.assert_eq(&printed);
            let again = Graph::from_text(&printed)?;
            assert!(again == graph, "{printed}");
            assert_eq!(again.to_text(), printed);
        }
    }
    Ok(())
}

#[test]
fn nodes_print_and_parse() -> Result<()> {
    check(
        r#"
        # A comment, and nodes in no order.
        %versions producer=21 min_consumer=12 bad_consumers=[3, 4]
        y = AddV2[T=float]( x , "odd name":0, ^init )@"/job:ps/task:0" %0x3200 # the sum
        init = NoOp
        x = Placeholder[dtype=float, shape=<2,?>]
        "odd name" = Const [value=float<>{1.0}, dtype=float]()
        both = IdentityN[T=[float, float]](x, y)
        last = Identity[T=float, _class=["loc:@x"]](both:1)
        "#,
        expect![[r#"
            %versions producer=21 min_consumer=12 bad_consumers=[3, 4]
            y = AddV2[T=float](x, "odd name", ^init) @"/job:ps/task:0" %0x3200
            init = NoOp
            x = Placeholder[dtype=float, shape=<2,?>]
            "odd name" = Const[dtype=float, value=float<>{1.0}]
            both = IdentityN[T=[float, float]](x, y)
            last = Identity[T=float, _class=["loc:@x"]](both:1)
        "#]],
    )
}

#[test]
fn attributes_of_every_kind_print_and_parse() -> Result<()> {
    check(
        r#"n = NoOp[s="a\"\\\n\t\x00\xffü", i=-3, f=1e-7, g=inf, h=nan, q=nan:0x7fc00001, b=true, t=half, r=<*>, u=<>, p=$T, fn=@"my f"[T=float, g=@h], e=[], l=[1.5, nan], z=[<1>, <?,2>], w=[@a, @b], "odd=key"=1]"#,
        expect![[r#"
            n = NoOp[b=true, e=[], f=1e-7, fn=@"my f"[T=float, g=@h], g=inf, h=nan, i=-3, l=[1.5, nan], "odd=key"=1, p=$T, q=nan:0x7fc00001, r=<*>, s="a\"\\\n\t\x00\xffü", t=half, u=<>, w=[@a, @b], z=[<1>, <?,2>]]
        "#]],
    )
}

#[test]
fn tensors_of_every_kind_print_and_parse() -> Result<()> {
    check(
        r#"
        a = NoOp[v=float<2,3>{1.0, -0.0, 1e30, 2.5, ...}]
        b = NoOp[v=half<3>{0.1, nan, -inf}, w=bfloat16<2>{0.1, nan:0x7fc1}, x=double<2>{0.1, nan:0xfff8000000000000}]
        c = NoOp[v=int8<2>{-128, 127}, w=uint64<1>{18446744073709551615}, x=bool<2>{true, false}]
        d = NoOp[v=string<2,2>{"a", "", "\xfe", ...}, w=string<>{"x"}]
        e = NoOp[v=complex64<1>{0x0000803f00000040}, w=float<0,3>{}, x=[int32<>{1}, int32<>{2}]]
        f = NoOp[v=resource<>{("/job:ps", "", "w", 0xff, "Var", float <2,?>, int32 <*>)}]
        "#,
        expect![[r#"
            a = NoOp[v=float<2,3>{1.0, -0.0, 1e30, 2.5, ...}]
            b = NoOp[v=half<3>{0.099975586, nan, -inf}, w=bfloat16<2>{0.100097656, nan:0x7fc1}, x=double<2>{0.1, nan:0xfff8000000000000}]
            c = NoOp[v=int8<2>{-128, 127}, w=uint64<1>{18446744073709551615}, x=bool<2>{true, false}]
            d = NoOp[v=string<2,2>{"a", "", "\xfe", "\xfe"}, w=string<>{"x"}]
            e = NoOp[v=complex64<1>{0x0000803f00000040}, w=float<0,3>{}, x=[int32<>{1}, int32<>{2}]]
            f = NoOp[v=resource<>{("/job:ps", "", "w", 0xff, "Var", float <2,?>, int32 <*>)}]
        "#]],
    )
}

#[test]
fn errors_name_the_line() -> Result<()> {
    check("a = NoOp\nb NoOp", expect!["line 2: expected '=', found 'NoOp'"])?;
    check(
        "\n\na = Nonsense",
        expect![[
            r#"line 3: Op type not registered 'Nonsense' in this server's binary. The node that uses it is {{node a}}; docs/OPS.md lists the ops that are there"#
        ]],
    )?;
    check("a = NoOp\na = NoOp", expect!["line 2: Node name 'a' already exists in the Graph"])?;
    check("a = NoOp[x=", expect!["line 1: expected a value, the line ends"])?;
    check("a = NoOp[x=1, x=2]", expect!["line 1: an attribute is set twice"])?;
    check("a = NoOp[x=[1, 2.0]]", expect!["line 1: the list is of several kinds"])?;
    check("a = NoOp[x=\"abc]", expect!["line 1: the string has no end"])?;
    check("a = NoOp[x=\"\\q\"]", expect![[r#"line 1: expected an escape, found '\q"]'"#]])?;
    check("a = NoOp[x=float<2>{1.0}]", expect!["line 1: 1 elements are given, the shape [2] has 2"])?;
    check("a = NoOp[x=float<2>{...}]", expect!["line 1: 0 elements are given, the shape [2] has 2"])?;
    check("a = NoOp[x=int8<1>{300}]", expect!["line 1: expected an element of type i8, found '300}]'"])?;
    check("a = NoOp[x=float<?>{1.0}]", expect!["line 1: a tensor's shape must be known and not too large"])?;
    check(
        "a = NoOp[x=float<1099511627776>{1.0, ...}]",
        expect!["line 1: a tensor of 1099511627776 elements does not fit the memory"],
    )?;
    check("a = NoOp %0x123", expect!["line 1: an odd number of hexadecimal digits"])?;
    check("a = NoOp b", expect!["line 1: expected the end of the line, found 'b'"])?;
    check("%nonsense 1", expect!["line 1: unknown directive '%nonsense'"])?;
    check("a = Identity[T=float](b)", expect!["Node 'a': Unknown input node 'b'"])?;
    let deep = format!("a = NoOp[x={}1{}]", "@f[x=".repeat(50_000), "]".repeat(50_000));
    check(&deep, expect!["line 1: attributes are nested too deep"])?;
    let deep = format!("a = NoOp[x={}]", "[".repeat(50_000));
    check(&deep, expect!["line 1: attributes are nested too deep"])
}

/// The random number generator SplitMix64, with the same numbers in every run.
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.below(256) as u8).collect()
    }

    fn tensor(&mut self) -> Result<Tensor> {
        let dtype = DType::ALL[self.below(DType::ALL.len())];
        let shape = Shape::new(&(0..self.below(3)).map(|_| self.below(4)).collect::<Vec<_>>())?;
        let count = shape.num_elements();
        match dtype {
            DType::Variant => Ok(Tensor::scalar(0u8)),
            DType::String => {
                let strings = (0..count)
                    .map(|_| {
                        let n = self.below(5);
                        self.bytes(n).into()
                    })
                    .collect();
                Tensor::strings(strings, shape)
            }
            DType::Resource => {
                let handle = |i: usize| ResourceHandle {
                    device: "d\n".into(),
                    container: "".into(),
                    name: format!("n{i}").into(),
                    hash_code: i as u64,
                    type_name: "t".into(),
                    dtypes_and_shapes: vec![(DType::Int32, PartialShape::unknown())],
                };
                Tensor::resources((0..count).map(handle).collect(), shape)
            }
            DType::Bool => Tensor::bools(&vec![self.below(2) == 0; count], shape),
            _ => {
                let size = dtype.size().unwrap_or(0);
                Tensor::from_bytes(dtype, shape, &self.bytes(count * size))
            }
        }
    }

    fn value(&mut self) -> Result<AttrValue> {
        Ok(match self.below(9) {
            0 => AttrValue::Int(self.below(1 << 40) as i64 - (1 << 39)),
            1 => AttrValue::Float(f32::from_bits(self.below(1 << 32) as u32)),
            2 => AttrValue::Str(self.bytes(6).into()),
            3 => AttrValue::Shape(PartialShape::from([None, Some(self.below(9))])),
            4 | 5 => AttrValue::Tensor(self.tensor()?),
            6 => AttrValue::List(AttrList::Tensor(vec![self.tensor()?, self.tensor()?])),
            7 => AttrValue::List(AttrList::Str(vec![self.bytes(3).into()])),
            _ => {
                let attrs: Attrs = [("x".into(), AttrValue::Tensor(self.tensor()?))].into_iter().collect();
                AttrValue::Func(FuncAttr { name: "f".into(), attrs })
            }
        })
    }
}

/// Returns a chain of identities with random attributes, devices and control inputs.
fn random_graph(random: &mut SplitMix64) -> Result<Graph> {
    let missing = |name: &str| Error::invalid(format!("no op {name}"));
    let placeholder = ops::lookup("Placeholder").ok_or_else(|| missing("Placeholder"))?;
    let identity = ops::lookup("Identity").ok_or_else(|| missing("Identity"))?;
    let mut graph = Graph::new();
    let start = Node::new("start", placeholder).with_attr("dtype", DType::Float);
    let mut nodes = vec![graph.add(start, &[], &[])?];
    for i in 0..20 {
        let mut node = Node::new(format!("n{i}"), identity).with_attr("T", DType::Float);
        node.attrs.set("a", random.value()?);
        if random.below(3) == 0 {
            node.device = "/job:\"x\"".into();
            node.opaque = Some(random.bytes(3).into());
        }
        let from = nodes[random.below(nodes.len())];
        let after: Vec<_> = (0..random.below(3)).map(|_| nodes[random.below(nodes.len())]).collect();
        nodes.push(graph.add(node, &[Output::from(from)], &after)?);
    }
    Ok(graph)
}

#[test]
fn random_graphs_print_and_parse() -> Result<()> {
    for seed in 0..50 {
        let graph = random_graph(&mut SplitMix64(seed))?;
        let text = graph.to_text();
        let again = Graph::from_text(&text)?;
        assert!(again == graph, "seed {seed}:\n{text}");
        assert_eq!(again.to_text(), text);
    }
    Ok(())
}

/// Bytes that have a meaning in the text format, and the first byte of a two-byte UTF-8 character.
const DAMAGE: &[u8] = b"\"\\[](){}<>=,.:^@$%#x n\n\xc3";

/// A text with random damage either parses to a graph that prints and parses again, or is refused with an error.
#[test]
fn damaged_texts_parse_or_are_refused() -> Result<()> {
    let mut random = SplitMix64(77);
    let (mut read, mut refused) = (0, 0);
    for seed in 0..30 {
        let text = random_graph(&mut SplitMix64(seed))?.to_text();
        for _ in 0..50 {
            let mut damaged = text.clone().into_bytes();
            for _ in 0..1 + random.below(2) {
                let at = random.below(damaged.len());
                damaged[at] = DAMAGE[random.below(DAMAGE.len())];
            }
            match Graph::from_text(&String::from_utf8_lossy(&damaged)) {
                Ok(graph) => {
                    assert!(Graph::from_text(&graph.to_text())? == graph);
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(read > 50 && refused > 500, "{read} read, {refused} refused");
    Ok(())
}

#[test]
fn functions_print_and_parse() -> Result<()> {
    check(
        r#"
        %function f[_noinline=true] stateful %0x2800
          %attr T "type" = float %0x2201
          %attr N "int"
          %arg x: $T
          %arg many: $N * $T %0x12
          %arg all: [$Types]
          %arg v: &float
          %output y: float
          %arg_attrs 0[_tag="x"]
          %control_output done
          add = AddV2[T=$T](x, "many:1", ^other) @"/cpu:0" %0x3200
          other = NotAnOp[g=@h[T=$T]](all)
          %return y = "add:z:0"
          %control_return done = other
        %end
        %gradient f g
        %registered_gradient g Op
        c = NoOp
        "#,
        expect![[r#"
            %function f[_noinline=true] stateful %0x2800
              %attr T "type" = float %0x2201
              %attr N "int"
              %arg x: $T
              %arg many: $N * $T %0x12
              %arg all: [$Types]
              %arg v: &float
              %output y: float
              %arg_attrs 0[_tag="x"]
              %control_output done
              add = AddV2[T=$T](x, "many:1", ^other) @"/cpu:0" %0x3200
              other = NotAnOp[g=@h[T=$T]](all)
              %return y = "add:z:0"
              %control_return done = other
            %end
            %gradient f g
            %registered_gradient g Op
            c = NoOp
        "#]],
    )?;
    check(
        "%function f\n%end\n%function f stateful\n%end",
        expect![[
            r#"line 4: Cannot add function 'f' because a different function with the same name already exists."#
        ]],
    )?;
    check("%function f", expect!["function f has no %end"])?;
    check("%function f\n%arg x: nothing", expect!["line 2: 'nothing' is no type"])
}

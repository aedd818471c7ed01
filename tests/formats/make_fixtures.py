#!/usr/bin/env python3
"""Writes the damaged and hostile files of tests/formats/fixtures. They are part of the repository; run this only to change them:
python tests/formats/make_fixtures.py [FOLDER]. The HDF5 files contain no time stamps, so a second run writes the same bytes."""

import json
import pathlib
import struct
import sys

import h5py
import numpy as np

folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "fixtures"
folder.mkdir(exist_ok=True)
ROWS = np.arange(24, dtype=np.int32).reshape(3, 8)


def save(name, content):
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


# --- npy: integer arrays ---------------------------------------------------------------------------------------------------------


def npy(header, data, version=1, length=None):
    header = (header + "\n").encode("latin-1")
    size = struct.pack("<H" if version == 1 else "<I", len(header) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + data


def dictionary(descr, shape, fortran=False):
    return "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (descr, fortran, shape)


whole = ROWS.astype("<i4").tobytes()
save("valid_version_2.npy", npy(dictionary("<i4", "(3, 8)"), whole, version=2))
save("valid_version_3.npy", npy(dictionary("<i4", "(3, 8)"), whole, version=3))
save("valid_big_endian.npy", npy(dictionary(">i8", "(3, 8)"), ROWS.astype(">i8").tobytes()))
save("valid_fortran.npy", npy(dictionary("<i4", "(3, 8)", True), ROWS.astype("<i4").tobytes(order="F")))
save("valid_400_byte_header.npy", npy(dictionary("<i4", "(3, 8)").ljust(399), whole))
save("empty.npy", b"")
save("short.npy", b"\x93NUMPY\x01\x00")
save("magic_only.npy", b"\x93NUMPY\x01\x00v\x00")
save("version_4.npy", npy(dictionary("<i4", "(3, 8)"), whole, version=4))
save("header_past_end.npy", npy(dictionary("<i4", "(3, 8)"), whole, length=60_000))
save("header_4_gib.npy", npy(dictionary("<i4", "(3, 8)"), whole, version=2, length=0xFFFFFFFF))
save("shape_overflows.npy", npy(dictionary("<i4", "(4611686018427387904, 4)"), whole))
save("shape_2_to_60.npy", npy(dictionary("<i4", "(1152921504606846976, 1)"), whole))
save("shape_2_to_40_columns.npy", npy(dictionary("<i4", "(1, 1099511627776)"), whole))
save("trailing_bytes.npy", npy(dictionary("<i4", "(3, 8)"), whole + b"\0"))
save("cut_off.npy", npy(dictionary("<i4", "(3, 8)"), whole[:-1]))
save("floats.npy", npy(dictionary("<f4", "(3, 8)"), ROWS.astype("<f4").tobytes()))
save("structured.npy", npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (24,), }", whole))
save("code_in_header.npy", npy("{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (3, 8), }", whole))

# --- npy: pickles ----------------------------------------------------------------------------------------------------------------


def records(body, count=1):
    return npy(dictionary("|O", f"({count},)"), body)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def object_array(items, count):
    """What NumPy writes for an object array, around the pickled list of its elements."""
    return (b"\x80\x03cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85q\x02C\x01bq\x03\x87q\x04Rq\x05(K\x01"
            + b"M" + struct.pack("<H", count) + b"\x85q\x06cnumpy\ndtype\nq\x07" + text(b"O8") + b"K\x00K\x01\x87Rq\x08(K\x03"
            + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb\x89]q\x09(" + items + b"etb.")


save("object_strings.npy", records(object_array(text(b"not a record"), 1)))
save("object_integers.npy", records(object_array(b"K\x01K\x02", 2), 2))
save("object_dict_without_fields.npy", records(object_array(b"}", 1)))
save("object_count_lies.npy", records(object_array(b"}", 1), count=2 ** 40))
save("pickle_bomb_protocol_2.npy", records(b"\x80\x02cposix\nsystem\n" + text(b"touch executed") + b"\x85R."))
save("pickle_bomb_protocol_4.npy", records(b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93" + text(b"open('executed','w')") + b"\x85R."))
save("pickle_bomb_persistent_id.npy", records(b"\x80\x03Pexecuted\n."))
save("pickle_bomb_instance.npy", records(b"\x80\x02(iposix\nsystem\n."))
save("pickle_nested_tuples.npy", records(b"\x80\x04]" + b"\x85" * 2000 + b"."))
save("pickle_holds_itself.npy", records(b"\x80\x02]q\x00h\x00a."))
save("pickle_holds_itself_in_tuple.npy", records(b"\x80\x02]q\x00h\x00\x85a."))
save("pickle_decode_bomb.npy",
     records(b"\x80\x02c_codecs\nencode\nq\x00" + text(b"a" * 900) + b"\x85q\x01]q\x02(" + b"h\x00h\x01R" * 300 + b"e."))
save("pickle_text_past_end.npy", records(b"\x80\x03X\xff\xff\xff\x7fabc."))
save("pickle_frame_past_end.npy", records(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f]."))
save("pickle_array_2_to_62.npy", records(
    b"\x80\x03cnumpy.core.numeric\n_frombuffer\n(C\x04\0\0\0\0cnumpy\ndtype\n" + text(b"i4") + b"K\x00K\x01\x87R"
    + b"\x8a\x08" + struct.pack("<q", 2 ** 62) + b"\x85" + text(b"C") + b"tR."))

# --- safetensors -----------------------------------------------------------------------------------------------------------------


def safetensors(header, data=b"", length=None):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(name="a", dtype="F32", shape="[1]", offsets="[0,4]"):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


one = "{" + tensor() + "}"
save("valid.safetensors", safetensors(one, b"1234"))
save("too_small.safetensors", b"\x10\0\0\0")
save("header_past_end.safetensors", safetensors(one, b"1234", 4096))
save("header_over_100_mb.safetensors", safetensors(one, b"1234", 100_000_001))
save("header_length_2_to_63.safetensors", safetensors(one, b"1234", 2 ** 63))
save("header_no_brace.safetensors", safetensors("[" + one + "]", b"1234"))
save("header_not_json.safetensors", safetensors('{"a":{"dtype":', b"1234"))
save("header_not_utf8.safetensors", safetensors(b'{"\xff\xfe":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"))
save("header_deep.safetensors", safetensors('{"a":' + "[" * 4000 + "]" * 4000 + "}"))
save("duplicate_name.safetensors", safetensors("{" + tensor() + "," + tensor() + "}", b"1234"))
save("duplicate_field.safetensors",
     safetensors('{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"))
save("unknown_dtype.safetensors", safetensors("{" + tensor(dtype="F31") + "}", b"1234"))
save("shape_is_not_bytes.safetensors", safetensors("{" + tensor(shape="[2]") + "}", b"1234"))
save("shape_overflows.safetensors", safetensors("{" + tensor(shape="[4294967296,4294967296]") + "}", b"1234"))
save("offset_overflows.safetensors", safetensors("{" + tensor(offsets="[18446744073709551615,3]") + "}", b"1234"))
save("offset_too_large.safetensors", safetensors("{" + tensor(offsets="[0,18446744073709551616]") + "}", b"1234"))
save("offsets_overlap.safetensors", safetensors("{" + tensor() + "," + tensor("b", offsets="[2,6]") + "}", b"123456"))
save("offsets_gap.safetensors", safetensors("{" + tensor() + "," + tensor("b", offsets="[8,12]") + "}", b"123456789012"))
save("data_cut_off.safetensors", safetensors(one, b"123"))
save("data_left_over.safetensors", safetensors(one, b"12345"))
save("pickle.safetensors", b"\x80\x02cposix\nsystem\n" + text(b"touch executed") + b"\x85R.")
save("torch_zip.safetensors", b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl\x80\x02cposix\nsystem\n" + text(b"touch executed")
     + b"\x85R.")
save("git_lfs_pointer.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4\n")

# --- HDF5 ------------------------------------------------------------------------------------------------------------------------


def hdf5(name, build, **options):
    path = folder / name
    with h5py.File(path, "w", track_order=False, **dict(dict(libver="earliest"), **options)) as file:
        build(file)
    return path


def dataset(file, name="input_ids", data=ROWS, **options):
    return file.create_dataset(name, data=data, track_times=False, **options)


def announced(file, shape, **options):
    return file.create_dataset("input_ids", shape, dtype="<i4", track_times=False, **options)


hdf5("valid.h5", lambda f: dataset(f, chunks=(1, 8), fletcher32=True, compression="gzip"))
content = hdf5("valid_plain.h5", lambda f: dataset(f)).read_bytes()
hdf5("valid_user_block.h5", dataset, userblock_size=512)
hdf5("valid_superblock_3.h5", dataset, libver=("v110", "v110"))
save("truncated.h5", content[:-30])
save("truncated_to_header.h5", content[:96])
hdf5("wrong_name.h5", lambda f: dataset(f, "tokens"))
hdf5("wrong_rank.h5", lambda f: dataset(f, data=ROWS.reshape(-1)))
hdf5("wrong_type.h5", lambda f: dataset(f, data=ROWS.astype("<f4")))
hdf5("group_instead.h5", lambda f: f.create_group("input_ids"))
hdf5("zero_rows.h5", lambda f: announced(f, (0, 8), maxshape=(None, 8), chunks=(1, 8)))
hdf5("external_link.h5", lambda f: f.__setitem__("input_ids", h5py.ExternalLink("valid.h5", "/input_ids")))
hdf5("soft_link.h5", lambda f: f.__setitem__("input_ids", h5py.SoftLink("/elsewhere")))
hdf5("external_raw_file.h5", lambda f: announced(f, (3, 8), external=[("/etc/passwd", 0, 96)]))


def virtual(file):
    space = h5py.h5s.create_simple((3, 8))
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_virtual(space, b"valid.h5", b"input_ids", space)
    properties.set_obj_track_times(False)
    h5py.h5d.create(file.id, b"input_ids", h5py.h5t.STD_I32LE, space, properties)


hdf5("virtual.h5", virtual, libver=("v110", "v110"))
hdf5("rows_2_to_40.h5", lambda f: announced(f, (2 ** 40, 8), chunks=(1024, 8)))
hdf5("rows_2_to_60.h5", lambda f: announced(f, (2 ** 60, 8), chunks=(1024, 8)))
hdf5("columns_2_to_28.h5", lambda f: announced(f, (1, 2 ** 28), chunks=(1, 1024)))
hdf5("rows_of_nothing.h5", lambda f: dataset(f, data=np.zeros((2 ** 20, 8), np.int8), chunks=(2 ** 20, 8), compression="gzip"))
hdf5("chunk_of_1_gib.h5", lambda f: announced(f, (2 ** 20, 256), chunks=(2 ** 20, 256), compression="gzip"))


def partly(file):
    announced(file, (3, 8), chunks=(1, 8))[0] = ROWS[0]


hdf5("chunks_missing.h5", partly)
hdf5("labels_without_mask.h5", lambda f: (dataset(f), dataset(f, "labels")))
hdf5("positions_without_starts.h5", lambda f: (dataset(f), dataset(f, "position_ids")))
hdf5("mask_of_another_shape.h5", lambda f: (dataset(f), dataset(f, "loss_mask", np.ones((3, 7), np.uint8))))
lists = np.array([np.ones(i + 1, np.uint8) for i in range(3)], object)
hdf5("mask_of_lists.h5", lambda f: (dataset(f), dataset(f, "loss_mask", lists, dtype=h5py.vlen_dtype(np.uint8))))
hdf5("mask_not_0_or_1.h5", lambda f: (dataset(f), dataset(f, "loss_mask", np.full((3, 8), 4, np.uint8))))

# Superblocks: libhdf5 1.10 allocates and fills 4 GiB for such a base address.
for name, at, value in (("superblock_version_9.h5", 8, b"\x09"), ("addresses_of_4_bytes.h5", 13, b"\x04"),
                        ("base_address.h5", 24, b"\xff" * 8), ("end_past_file.h5", 40, struct.pack("<Q", 2 ** 40)),
                        ("driver_information.h5", 48, struct.pack("<Q", 96))):
    changed = bytearray((folder / "valid_plain.h5").read_bytes())
    changed[at:at + len(value)] = value
    save(name, bytes(changed))

# An unknown filter: gzip's number in the filter message becomes 299.
content = bytearray(hdf5("absent_filter.h5", lambda f: dataset(f, chunks=(3, 8), compression="gzip")).read_bytes())
at = content.index(b"deflate\0") - 8
assert content[at:at + 2] == b"\1\0", content[at:at + 8]
content[at:at + 2] = struct.pack("<H", 299)
save("absent_filter.h5", bytes(content))

# One changed byte in a chunk: with a checksum HDF5 detects it, without one the token 20 becomes 65,556.
for name, options in (("flipped_with_checksum.h5", dict(fletcher32=True)), ("flipped_without_checksum.h5", {})):
    content = bytearray(hdf5(name, lambda f: dataset(f, chunks=(3, 8), **options)).read_bytes())
    at = content.index(whole) + 4 * 20 + 2
    content[at] ^= 1
    save(name, bytes(content))

# --- sentencepiece ---------------------------------------------------------------------------------------------------------------


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


def piece(value, score=0.0, kind=1):
    value = value.encode() if isinstance(value, str) else value
    return field(1, field(1, value) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind]))


def model(pieces, tail=None):
    specials = piece("<unk>", kind=2) + piece("<s>", kind=3) + piece("</s>", kind=3)
    trainer = field(2, bytes([3 << 3, 2]))  # BPE
    normalizer = field(3, field(1, b"identity"))
    return specials + b"".join(pieces) + (trainer + normalizer if tail is None else tail)


letters = [piece(letter, -float(i)) for i, letter in enumerate("\u2581abcdefgh")]
content = model(letters)
save("valid.model", content)
save("truncated.model", content[:-3])
save("truncated_between_fields.model", model(letters, tail=b""))
save("piece_twice.model", model(letters + [piece("a", -20.0)]))
save("piece_not_utf8.model", model(letters + [piece(b"\xff\xfe", -20.0)]))
save("piece_empty.model", model(letters + [piece("", -20.0)]))
save("piece_score_nan.model", model(letters + [piece("i", float("nan"))]))
save("two_unknowns.model", model(letters + [piece("<unk2>", kind=2)]))
save("piece_unused.model", model(letters + [piece("ab", -20.0, kind=5)]))
save("json.model", json.dumps({"model": {"type": "BPE", "merges": ["a b"]}}))
save("length_past_end.model", content + b"\x0a\xff\xff\xff\xff\x0f")

# --- byte-level BPE ---------------------------------------------------------------------------------------------------------------


def tokenizer(vocab=None, merges=(("a", "b"),), added=(), **other):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3} if vocab is None else vocab, "merges": [list(pair) for pair in merges]}
    return json.dumps({"version": "1.0", "added_tokens": list(added), "normalizer": None,
                       "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}, "model": model, **other})


content = tokenizer()
save("valid_tokenizer.json", content)
save("tokenizer_truncated.json", content[:-20])
save("tokenizer_token_twice.json", content.replace('"b": 1', '"a": 1'))
save("tokenizer_id_twice.json", tokenizer({"a": 0, "b": 0, "ab": 1}))
save("tokenizer_id_2_to_23.json", tokenizer({"a": 0, "b": 2 ** 23, "ab": 1}))
save("tokenizer_id_2_to_63.json", tokenizer({"a": 0, "b": 2 ** 63, "ab": 1}))
save("tokenizer_merge_unknown.json", tokenizer(merges=(("a", "c"),)))
save("tokenizer_added_twice.json", tokenizer(added=[{"id": 4, "content": "<x>"}, {"id": 4, "content": "<y>"}]))
save("tokenizer_sentencepiece.json", content.replace('"type": "BPE"', '"type": "BPE", "byte_fallback": true'))
save("tokenizer_web_page.json", "\n \n<!DOCTYPE html>\n<html></html>\n")
save("tokenizer_wordpiece.json", content.replace('"type": "BPE"', '"type": "WordPiece"'))
save("tokenizer_pattern.json", tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "(((("}, "behavior": "Isolated", "invert": False}, {"type": "ByteLevel", "use_regex": False}]}))
save("tokenizer_deep.json", '{"model": ' + "[" * 3000 + "]" * 3000 + "}")

# --- Megatron index: three documents of 8 tokens in tokens.bin -----------------------------------------------------------------


def megatron(magic=b"MMIDIDX\0\0", version=1, code=4, sequences=3, bounds=4, lengths=(8, 8, 8), offsets=(0, 32, 64), boundaries=(0, 1, 2, 3), tail=b""):
    return (magic + struct.pack("<QBQQ", version, code, sequences, bounds) + struct.pack(f"<{len(lengths)}i", *lengths)
            + struct.pack(f"<{len(offsets)}q", *offsets) + struct.pack(f"<{len(boundaries)}q", *boundaries) + tail)


save("tokens.bin", whole)
save("valid.idx", megatron())
save("empty.idx", b"")
save("short.idx", megatron()[:33])
save("other_magic.idx", megatron(magic=b"TNTIDX\0\0\0"))
save("version_2.idx", megatron(version=2))
save("type_0.idx", megatron(code=0))
save("type_9.idx", megatron(code=9))
save("float64.idx", megatron(code=6))
save("float32.idx", megatron(code=7))
save("sequences_2_to_63.idx", megatron(sequences=2**63))
save("sequences_overflow.idx", megatron(sequences=2**62 + 3))
save("sequences_4.idx", megatron(sequences=4))
save("boundaries_2_to_61.idx", megatron(bounds=2**61))
save("no_boundaries.idx", megatron(bounds=0, boundaries=()))
save("length_negative.idx", megatron(lengths=(8, -8, 8)))
save("length_2_to_31.idx", megatron(lengths=(8, 2**31 - 1, 8)))
save("token_past_end.idx", megatron(lengths=(8, 8, 9)))
save("offset_negative.idx", megatron(offsets=(0, -32, 64)))
save("offset_2_to_63.idx", megatron(offsets=(0, 32, 2**63 - 1)))
save("wider_type.idx", megatron(code=5))
save("boundary_first.idx", megatron(boundaries=(1, 1, 2, 3)))
save("boundary_descends.idx", megatron(boundaries=(0, 2, 1, 3)))
save("boundary_last.idx", megatron(boundaries=(0, 1, 2, 4)))
save("trailing.idx", megatron(tail=b"\0\0"))

# --- Hugging Face index ----------------------------------------------------------------------------------------------------------

for name, target in (("parent", "../outside.safetensors"), ("parent_inside", "sub/../../outside.safetensors"),
                     ("absolute", "/etc/hostname.safetensors"), ("link", "link.safetensors"), ("nul", "valid.safetensors\0x"),
                     ("long", "x" * 5000 + ".safetensors"), ("empty", ""), ("pickle", "pytorch_model.bin")):
    save(f"index_{name}.json", json.dumps({"weight_map": {"a": target}}))
save("index_not_text.json", json.dumps({"weight_map": {"a": 5}}))
save("index_duplicate.json", '{"weight_map": {"a": "valid.safetensors", "a": "valid.safetensors"}}')
save("index_deep.json", '{"weight_map": ' + "[" * 3000 + "]" * 3000 + "}")

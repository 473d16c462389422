"""Data sets as their releases lie on disk, tiny: what each reader is tested on."""

import io
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

RATE = 16000


def level(name: str) -> float:
    """The sample that a recording of this name repeats."""
    return (zlib.crc32(name.encode()) % 1000 + 1) / 2048


def wav_bytes(name: str, suffix: str = "WAV", rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.full(320, level(name), np.float32), rate, format=suffix, subtype="PCM_16")
    return file.getvalue()


def audio(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav_bytes(path.stem))


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def shard(path: Path, rows: Iterable[dict], group: int = 2) -> None:
    """A Parquet file as data sets are published in, audio inside: ``{"bytes", "path"}``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=group)


def embedded(name: str, **columns) -> dict:
    return {"audio": {"bytes": wav_bytes(name, "FLAC"), "path": f"{name}.flac"}, **columns}


class Set(NamedTuple):
    make: Callable[[Path], None]
    rows: list[tuple]  # id, system, MOS, listeners, split
    meta: dict[str, str]  # of the first recording
    labels: str  # the first label file
    inner: tuple[str, ...] = ()  # the folders that may be named as well


def bvcc(root: Path) -> None:
    data = root / "main/DATA"
    audio(data / "wav", "sysa-utt1.wav", "sysa-utt2.wav", "sysb-utt3.wav", "sysb-utt4.wav")
    text(data / "sets/train_mos_list.txt", "sysa-utt1.wav,3.5", "", "sysb-utt3.wav,2.0")
    text(data / "sets/val_mos_list.txt", "sysa-utt2.wav,4.125")
    text(data / "sets/test_mos_list.txt", "sysb-utt4.wav,1")
    who = "worker_1,{}_30-39_LISTENER_Female_Valid_1_No"
    text(data / "sets/TRAINSET", *(f"sysa,sysa-utt1.wav,{n},{who}" for n in (3, 4)), f"sysb,sysb-utt3.wav,2,{who}")
    text(data / "sets/DEVSET", *(f"sysa,sysa-utt2.wav,{n},{who}" for n in (4, 5, 4)))
    text(data / "mydata_system.csv", "system_ID,mean", "sysa,3.8")


def ood(root: Path) -> None:
    data = root / "ood/DATA"
    audio(data / "wav", "sysc-utt1.wav", "sysd-utt2.wav", "sysd-utt3.wav")
    text(data / "sets/train_mos_list.txt", "sysc-utt1.wav,3.5")
    text(data / "sets/val_mos_list.txt", "sysd-utt2,2.25")
    text(data / "sets/test_mos_list.txt", "sysd-utt3.wav,2")
    text(data / "sets/unlabeled_mos_list.txt", "sysd-utt9.wav,2")
    text(data / "sets/TESTSET", *(f"sysd,sysd-utt3,{n},w,{{}}_x" for n in (1, 3)))


NISQA_COLUMNS = "db con file con_description filename_deg filename_ref source lang votes mos noi col dis loud mos_std"


def nisqa_set(root: Path, name: str, *rows: tuple) -> None:
    """Rows are (con, file, reference, votes, mos)."""
    folder = root / "NISQA_Corpus" / name
    audio(folder / "deg", *(row[1] for row in rows))
    lines = (f'{name},{con},7,"G.711, lossy",{file},{ref},src,en,{votes},{mos},3.1,4.2,2.5,3.9,0.7,{name}/deg/{file}'
             for con, file, ref, votes, mos in rows)  # fmt: skip
    text(folder / f"{name}_file.csv", f"{','.join(NISQA_COLUMNS.split())},filepath_deg", *lines)


def nisqa_test(name: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        rows = [(con, f"c0{con}_{i}.wav", f"r{i}.wav", 30, 2.5 + con) for con in (1, 2) for i in (1, 2)]
        nisqa_set(root, name, *rows)

    return make


def nisqa_rows(name: str) -> list[tuple]:
    return [(f"{name}/c0{c}_{i}", f"{name}/{c}", 2.5 + c, 30, "test") for c in (1, 2) for i in (1, 2)]


def nisqa_training(root: Path) -> None:
    nisqa_set(root, "NISQA_TRAIN_SIM", (1, "a.wav", "ra.wav", 5, 1.5), (2, "b.wav", "rb.wav", 5, 4.5))
    nisqa_set(root, "NISQA_TRAIN_LIVE", (1, "a.wav", "", "", 2.5))
    nisqa_set(root, "NISQA_VAL_SIM", (1, "a.wav", "ra.wav", "4.0", 3.5))
    nisqa_set(root, "NISQA_VAL_LIVE", (1, "d.wav", "nan", "nan", 3.5))


def somos(root: Path) -> None:
    names = ["news_1_015", "news_2_000", "conv_3_015", "conv_3_102"]
    audio(root / "audios", *(f"{name}.wav" for name in names))
    for subset, mean in (("clean", "3.25"), ("full", "3.0")):
        folder = root / "training_files/split1" / subset
        text(folder / "train_mos_list.txt", "utteranceId,mean", f"news_1_015.wav,{mean}", "news_2_000,4.5")
        text(folder / "valid_mos_list.txt", "utteranceId,mean", "conv_3_015,2.0")
        text(folder / "test_mos_list.txt", "utteranceId,mean", "conv_3_102.wav,5.0")
        text(folder / "train_system.csv", "systemId,mean", "015,3.2")
        single = [f"015,news_1_015.wav,{n},L{n}" for n in (3, 3, 3, 4)] + ["000,news_2_000.wav,4,L1"]
        text(folder / "TRAINSET", "systemId,utteranceId,choice,listenerId", *single)


def tmhint(root: Path) -> None:
    folder = root / "TMHINTQI"
    audio(folder / "train", "b_1.wav", "clean_3.wav", "unlisted.wav")
    audio(folder / "test", "a_2.wav")
    text(
        folder / "raw_data.csv",
        "idx,method,uttr,snr,noise,quality_score,intelligibility_score,file_name",
        "0,FCN,s1,-2,babble,3,0.5,b_1",
        "1,DDAE,s2,5,white,,0.5,a_2",
        "2,FCN,s1,-2,babble,,0.9,b_1",
        "3,FCN,s1,-2,babble,4,0.9,b_1",
        "4,clean,s3,,,,1.0,clean_3",
        "5,DDAE,s2,5,white,2,0.5,a_2",
    )


def track(number: str, folder: str, *lines: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        text(root / f"track{number}_answer.txt", *lines)
        audio(root / folder, *(f"{line.split(',')[0]}.wav" for line in lines))

    return make


def urgent2024(root: Path) -> None:
    rows = [
        embedded(name, id=name, sampling_rate=RATE, mos=mos, raw_ratings=[3] * count)
        for name, mos, count in (("P001-fileid_1", 3.5, 8), ("P001-fileid_2", 2.5, 8), ("P002-fileid_1", 1.5, 7))
    ]
    shard(root / "data/test-00000-of-00002.parquet", rows)
    last = embedded("P002-fileid_2", id="P002-fileid_2", sampling_rate=RATE, mos=4.5, raw_ratings=[4, 5])
    shard(root / "data/test-00001-of-00002.parquet", [last])


def urgent2025(root: Path) -> None:
    names = ("a_s1_fileid_1", "a_s1_fileid_2", "a_s2_fileid_1", "a_s2_fileid_2")
    rows = [
        embedded(name, sample_id=name, system_id=name.split("_")[1], mos=mos, dnsmos_ovrl=3.0)
        for name, mos in zip(names, (3.5, None, 1.5, 2.5), strict=True)
    ]
    shard(root / "data/blind_test_mos-00000-of-00001.parquet", rows)
    shard(root / "data/blind_test-00000-of-00001.parquet", rows)
    shard(root / "data/nonblind_test-00000-of-00001.parquet", rows)


def voicebank(root: Path) -> None:
    for side in ("clean", "noisy"):
        audio(root / f"{side}_trainset_28spk_wav", "p226_001.wav", "p227_001.wav")
        audio(root / f"{side}_testset_wav", "p232_001.wav")


def own(root: Path) -> None:
    audio(root, "one.wav", "sub/two.wav", "three.wav")
    text(
        root / "labels.csv",
        "\ufefffile,mos,system,listeners,split,speaker,text",
        'one.wav,3.5,tts-a,12,train,ann,"well, yes"',
        "sub/two.wav,,,,dev,,",
        "three.wav,1,tts-b,3,,ben,",
    )


SETS: dict[str, Set] = {
    "bvcc": Set(
        bvcc,
        [
            ("sysa-utt1", "sysa", 3.5, 2, "train"),
            ("sysb-utt3", "sysb", 2.0, 1, "train"),
            ("sysa-utt2", "sysa", 4.125, 3, "validation"),
            ("sysb-utt4", "sysb", 1.0, None, "test"),
        ],
        {},
        "main/DATA/sets/train_mos_list.txt",
        inner=("main", "main/DATA"),
    ),
    "voicemos2022-ood": Set(
        ood,
        [
            ("sysc-utt1", "sysc", 3.5, None, "train"),
            ("sysd-utt2", "sysd", 2.25, None, "validation"),
            ("sysd-utt3", "sysd", 2.0, 2, "test"),
        ],
        {},
        "ood/DATA/sets/train_mos_list.txt",
        inner=("ood", "ood/DATA"),
    ),
    "nisqa": Set(
        nisqa_training,
        [
            ("NISQA_TRAIN_SIM/a", None, 1.5, 5, "train"),
            ("NISQA_TRAIN_SIM/b", None, 4.5, 5, "train"),
            ("NISQA_TRAIN_LIVE/a", None, 2.5, None, "train"),
            ("NISQA_VAL_SIM/a", None, 3.5, 4, "validation"),
            ("NISQA_VAL_LIVE/d", None, 3.5, None, "validation"),
        ],
        {"lang": "en", "con_description": "G.711, lossy", "source": "src", "noi": "3.1", "col": "4.2", "dis": "2.5",
         "loud": "3.9", "mos_std": "0.7", "original": "ra.wav"},
        "NISQA_Corpus/NISQA_TRAIN_SIM/NISQA_TRAIN_SIM_file.csv",
        inner=("NISQA_Corpus",),
    ),
    **{
        kind: Set(
            nisqa_test(name),
            nisqa_rows(name),
            {"lang": "en", "con_description": "G.711, lossy", "source": "src", "noi": "3.1", "col": "4.2",
             "dis": "2.5", "loud": "3.9", "mos_std": "0.7", "original": "r1.wav"},
            f"NISQA_Corpus/{name}/{name}_file.csv",
            inner=("NISQA_Corpus",),
        )
        for kind, name in (
            ("nisqa-for", "NISQA_TEST_FOR"),
            ("nisqa-livetalk", "NISQA_TEST_LIVETALK"),
            ("nisqa-p501", "NISQA_TEST_P501"),
        )
    },
    "somos": Set(
        somos,
        [
            ("news_1_015", "015", 3.25, 4, "train"),
            ("news_2_000", "000", 4.5, 1, "train"),
            ("conv_3_015", "015", 2.0, None, "validation"),
            ("conv_3_102", "102", 5.0, None, "test"),
        ],
        {"speaker": "LJ", "original": "news_1"},
        "training_files/split1/clean/train_mos_list.txt",
    ),
    "tmhint-qi": Set(
        tmhint,
        [
            ("b_1", "FCN-SNR-2-babble", 3.5, 2, "train"),
            ("a_2", "DDAE-SNR5-white", 2.0, 1, "test"),
            ("clean_3", "clean-SNR-", None, 0, "train"),
        ],
        {"original": "s1"},
        "TMHINTQI/raw_data.csv",
        inner=("TMHINTQI",),
    ),
    **{
        kind: Set(
            track("1", "VoiceMOS2023Track1", "VoiceMOS2023Track1-A-AD_test_0026,4.42105263157895",
                  "VoiceMOS2023Track1-A-NEB_test_7,4", "VoiceMOS2023Track1-BF-AD_test_0026,2",
                  "VoiceMOS2023Track1-BF-NEB_test_7,2.25"),
            rows,
            {"speaker": speaker},
            "track1_answer.txt",
        )
        for kind, speaker, rows in (
            ("voicemos2023-1a", "NEB", [("VoiceMOS2023Track1-A-NEB_test_7", "A-NEB", 4.0, None, "test"),
                                        ("VoiceMOS2023Track1-BF-NEB_test_7", "BF-NEB", 2.25, None, "test")]),
            ("voicemos2023-1b", "AD", [("VoiceMOS2023Track1-A-AD_test_0026", "A-AD", 4.42105263157895, None, "test"),
                                       ("VoiceMOS2023Track1-BF-AD_test_0026", "BF-AD", 2.0, None, "test")]),
        )
    },
    "voicemos2023-2": Set(
        track("2", "VoiceMOS_2023_track2", "VoiceMOS2023Track2-B01-SF1-CDF1-30001,2.857142857142857",
              "VoiceMOS2023Track2-SOU-SF1-SF1-30002,3.68"),
        [
            ("VoiceMOS2023Track2-B01-SF1-CDF1-30001", "B01", 2.857142857142857, None, "test"),
            ("VoiceMOS2023Track2-SOU-SF1-SF1-30002", "SOU", 3.68, None, "test"),
        ],
        {"source": "SF1", "speaker": "CDF1"},
        "track2_answer.txt",
    ),
    "voicemos2023-3": Set(
        track("3", ".", "VoiceMOS2023Track3-Noisy_snr5_white_TMHINT_g4_32_03,4.0",
              "VoiceMOS2023Track3-TMHINT_b1_01_03,3.0", "VoiceMOS2023Track3-clean_TMHINT_b1_01_03,5.0",
              "VoiceMOS2023Track3-FCN_snr-2_white_TMHINT_b1_01_03,1.0"),
        [
            ("VoiceMOS2023Track3-Noisy_snr5_white_TMHINT_g4_32_03", "Noisy_snr5_white_TMHINT", 4.0, None, "test"),
            ("VoiceMOS2023Track3-clean_TMHINT_b1_01_03", "clean_TMHINT", 5.0, None, "test"),
            ("VoiceMOS2023Track3-FCN_snr-2_white_TMHINT_b1_01_03", "FCN_snr-2_white_TMHINT", 1.0, None, "test"),
        ],
        {"original": "g4_32_03"},
        "track3_answer.txt",
    ),
    "urgent2024": Set(
        urgent2024,
        [
            ("P001-fileid_1", "P001", 3.5, 8, "test"),
            ("P001-fileid_2", "P001", 2.5, 8, "test"),
            ("P002-fileid_1", "P002", 1.5, 7, "test"),
            ("P002-fileid_2", "P002", 4.5, 2, "test"),
        ],
        {"original": "fileid_1"},
        "data/test-00001-of-00002.parquet",
        inner=("data",),
    ),
    "urgent2025": Set(
        urgent2025,
        [
            ("a_s1_fileid_1", "s1", 3.5, None, "test"),
            ("a_s1_fileid_2", "s1", None, None, "test"),
            ("a_s2_fileid_1", "s2", 1.5, None, "test"),
            ("a_s2_fileid_2", "s2", 2.5, None, "test"),
        ],
        {"original": "fileid_1"},
        "data/blind_test_mos-00000-of-00001.parquet",
        inner=("data",),
    ),
    "voicebank-demand": Set(
        voicebank,
        [
            (f"{side}/{name}", side, None, None, split)
            for name, split in (("p226_001", "train"), ("p227_001", "train"), ("p232_001", "test"))
            for side in ("noisy", "clean")
        ],
        {"speaker": "p226", "original": "p226_001", "pair": "clean/p226_001"},
        "noisy_testset_wav",
    ),
    "csv": Set(
        own,
        [
            ("one.wav", "tts-a", 3.5, 12, "train"),
            ("sub/two.wav", None, None, None, "validation"),
            ("three.wav", "tts-b", 1.0, 3, "test"),
        ],
        {"speaker": "ann", "text": "well, yes"},
        "labels.csv",
        inner=("labels.csv",),
    ),
}  # fmt: skip

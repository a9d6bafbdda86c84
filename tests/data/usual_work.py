"""A line of usual work for each package of the mirror; `use` prints what fails, as JSON."""

import asyncio, contextlib, io, json, os, subprocess, sys


def use(part):
    failed = {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for work in PARTS[part]:
            try:
                work()
            except BaseException as error:
                failed[work.__name__] = f"{type(error).__name__}: {error}"[:500]
    print(json.dumps(failed))


def frame():
    import pandas as pd
    return pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})


def style():
    assert "background-color" in frame().style.highlight_max("a").to_html()

def to_markdown():
    assert "|  2 |   3 | z   |" in frame().to_markdown()

def to_latex():
    assert r"\begin{tabular}" in frame().to_latex()

def to_sql():
    import pandas as pd, sqlalchemy
    engine = sqlalchemy.create_engine("sqlite://")
    frame().to_sql("t", engine, index=False)
    assert pd.read_sql("select sum(a) s from t", engine).s[0] == 6

def read_html():
    import pandas as pd
    for flavor in ("lxml", "bs4"):
        assert pd.read_html(io.StringIO(frame().to_html()), flavor=flavor)[0].a.sum() == 6

def excel():
    import pandas as pd
    for engine in ("openpyxl", "xlsxwriter"):
        frame().to_excel("x.xlsx", engine=engine, index=False)
        assert pd.read_excel("x.xlsx").equals(frame())

def xlsxwriter():
    import xlsxwriter
    with xlsxwriter.Workbook("chart.xlsx") as book:
        sheet = book.add_worksheet()
        sheet.write_column("A1", [1, 2])
        chart = book.add_chart({"type": "column"})
        chart.add_series({"values": "=Sheet1!$A$1:$A$2"})
        sheet.insert_chart("C1", chart)

def old_excel():
    import pandas as pd, struct
    # BIFF2: the beginning of a sheet, one whole number, the end.
    sheet = struct.pack("<4H", 9, 4, 7, 16) + struct.pack("<4H3sH", 2, 9, 0, 0, bytes(3), 7) + struct.pack("<2H", 10, 0)
    assert pd.read_excel(io.BytesIO(sheet), header=None).iloc[0, 0] == 7

def numexpr():
    assert frame().query("a > 1", engine="numexpr").a.sum() == 5
    assert frame().eval("a * 2", engine="numexpr").sum() == 12

def columns_on_disk():
    import pandas as pd
    frame().to_parquet("x.parquet")
    frame().to_feather("x.feather")
    frame().to_hdf("x.h5", key="a")
    assert pd.read_parquet("x.parquet").equals(pd.read_feather("x.feather"))
    assert pd.read_hdf("x.h5").a.sum() == 6

def xml():
    import pandas as pd
    frame().to_xml("x.xml", index=False)
    assert pd.read_xml("x.xml").equals(frame())

def xarray():
    assert frame().set_index("b").to_xarray().a.sum() == 6

def rolling_with_numba():
    assert frame().a.rolling(2).mean(engine="numba").iloc[2] == 2.5

def plotting():
    import pandas as pd
    pd.plotting.scatter_matrix(frame().assign(c=[2, 5, 3]))
    frame().a.plot.kde()

def time_zones():
    import pandas as pd, pytz
    assert pd.Timestamp("2026-01-01", tz=pytz.timezone("Europe/Berlin")).utcoffset().seconds == 3600


def jinja2():
    from jinja2 import Template
    assert Template("{% for x in xs %}{{ x }}{% endfor %}").render(xs=[1, 2]) == "12"

def tabulate():
    from tabulate import tabulate
    assert tabulate([[1]], headers=["a"], tablefmt="github").endswith("|   1 |")

def yaml():
    import yaml
    assert yaml.safe_load(yaml.safe_dump({"a": [1]})) == {"a": [1]}
    assert yaml.__with_libyaml__

def html5lib():
    from bs4 import BeautifulSoup
    assert BeautifulSoup("<p>x", "html5lib").p.text == "x"

def markdown():
    import markdown
    assert "<td>1</td>" in markdown.markdown("|a|\n|-|\n|1|", extensions=["tables"])

def docx():
    import docx
    document = docx.Document()
    document.add_heading("x")
    document.add_table(1, 1)
    document.save("x.docx")
    assert docx.Document("x.docx").paragraphs[0].text == "x"

def pptx():
    from pptx import Presentation
    slides = Presentation()
    slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = "x"
    slides.save("x.pptx")
    assert Presentation("x.pptx").slides[0].shapes.title.text == "x"

def pdf():
    from pypdf import PdfReader
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table
    from reportlab.lib.styles import getSampleStyleSheet
    SimpleDocTemplate("x.pdf").build([Paragraph("hello", getSampleStyleSheet()["Title"]), Table([["1"]])])
    assert "hello" in PdfReader("x.pdf").pages[0].extract_text()


def numba():
    from numba import njit, prange, vectorize
    import numpy as np
    @njit
    def plain(n):
        total = 0
        for i in range(n):
            total += i
        return total
    @njit(parallel=True)
    def split(n):
        total = 0
        for i in prange(n):
            total += i
        return total
    assert plain(10) == split(10) == 45
    assert vectorize(lambda x: x + 1)(np.ones(2)).sum() == 4

def statsmodels():
    import numpy as np, pandas as pd
    import statsmodels.api as sm, statsmodels.formula.api as smf
    from statsmodels.tsa.arima.model import ARIMA
    data = pd.DataFrame({"x": np.arange(10.0)}).assign(y=lambda d: 2 * d.x + 1)
    fit = smf.ols("y ~ x", data).fit()
    assert "OLS" in str(fit.summary()) and round(fit.params.x, 6) == 2
    ARIMA(np.sin(np.arange(40.0)), order=(1, 0, 0)).fit()
    sm.qqplot(data.y)

def networkx():
    import networkx as nx
    assert nx.shortest_path(nx.path_graph(4), 0, 3) == [0, 1, 2, 3]
    nx.pagerank(nx.karate_club_graph())
    nx.draw(nx.path_graph(3))


def skimage():
    from skimage import data, filters, measure, morphology, segmentation, transform
    assert filters.sobel(data.camera()).shape == (512, 512)

def opencv():
    import cv2, numpy as np
    image = np.zeros((50, 50, 3), np.uint8)
    cv2.circle(image, (25, 25), 9, (0, 255, 0), -1)
    cv2.imwrite("x.png", image)
    assert cv2.Canny(cv2.imread("x.png"), 1, 2).any()

def video():
    import cv2, imageio.v3 as iio, numpy as np
    iio.imwrite("x.mp4", np.zeros((10, 64, 64, 3), np.uint8), fps=5)
    iio.imwrite("x.gif", np.zeros((4, 8, 8, 3), np.uint8))
    assert iio.imread("x.mp4").shape == (10, 64, 64, 3)
    assert cv2.VideoCapture("x.mp4").read()[0]

def animation():
    import matplotlib.pyplot as plt
    from matplotlib.animation import FuncAnimation
    figure, axes = plt.subplots()
    line, = axes.plot([0, 1])
    FuncAnimation(figure, lambda i: (line,), frames=3).save("y.mp4")
    plt.close("all")
    assert os.path.getsize("y.mp4") > 100

def ffmpeg():
    subprocess.run(["ffmpeg", "-loglevel", "error", "-y", "-f", "lavfi", "-i", "sine=duration=0.1", "x.wav"],
                   check=True)

def bokeh():
    from bokeh.plotting import figure, output_file, save
    plot = figure()
    plot.line([1, 2], [1, 2])
    output_file("bokeh.html")
    save(plot)

def altair():
    import altair as alt
    chart = alt.Chart(frame()).mark_bar().encode(x="b", y="a")
    for name in ("altair.html", "altair.png", "altair.svg"):
        chart.save(name)

def plotly():
    import numpy as np, plotly.express as px, plotly.graph_objects as go, plotly.io as pio
    from PIL import Image
    iris = px.scatter(px.data.iris(), x="sepal_width", y="sepal_length", color="species", title="Iris 中文")
    iris.write_image("iris.png", width=400, height=300, scale=2)
    assert Image.open("iris.png").size == (800, 600)
    # Text is drawn: the title's corner is not empty.
    assert np.asarray(Image.open("iris.png").convert("L"))[:120, :300].min() < 128
    for figure in (px.bar(x=["a"], y=[1]), px.pie(values=[1, 2]), px.imshow([[1, 2]]), px.line(y=[1, 2]),
                   px.histogram(x=[1, 1, 2]), px.box(y=[1, 2, 9]), px.treemap(names=["a"], parents=[""]),
                   px.scatter(x=np.arange(2000), y=np.arange(2000))):
        assert figure.to_image().startswith(b"\x89PNG")
    bar = px.bar(x=["a"], y=[1])
    for kind, start in (("jpg", b"\xff\xd8"), ("webp", b"RIFF"), ("svg", b"<svg"), ("pdf", b"%PDF")):
        assert bar.to_image(kind).startswith(start), kind
    pio.write_images([bar, bar], ["1.png", "2.png"])
    try:
        go.Figure(go.Surface(z=[[1, 2], [3, 4]])).write_image("3d.png")
    except ValueError as error:
        assert "surface" in str(error) and "browser" in str(error)
        assert not os.path.exists("3d.png")
    else:
        raise AssertionError("an image without its trace")


def nltk():
    import nltk
    from nltk.stem import PorterStemmer
    from nltk.tokenize import wordpunct_tokenize
    assert PorterStemmer().stem("running") == "run"
    assert nltk.FreqDist(wordpunct_tokenize("a a b.")).most_common(1) == [("a", 2)]

def pytest():
    with open("test_x.py", "w") as file:
        file.write("import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_a(x): assert x\n")
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_x.py"], capture_output=True, text=True)
    assert "2 passed" in ran.stdout, ran.stdout

def aiohttp():
    import threading
    from aiohttp import ClientSession, web
    async def talk():
        async def hello(request):
            return web.json_response({"a": 1})
        app = web.Application()
        app.router.add_get("/", hello)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 8765).start()
        async with ClientSession() as session, session.get("http://127.0.0.1:8765/") as answer:
            assert await answer.json() == {"a": 1}
        await runner.cleanup()
    # A thread has no loop that runs.
    failed = []
    def run():
        try:
            asyncio.run(talk())
        except BaseException as error:
            failed.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]

def sqlalchemy():
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
    from sqlalchemy import create_engine, select
    class Base(DeclarativeBase):
        pass
    class Row(Base):
        __tablename__ = "rows"
        id: Mapped[int] = mapped_column(primary_key=True)
    engine = create_engine("sqlite:///x.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Row(id=7))
        session.commit()
        assert session.scalars(select(Row.id)).all() == [7]


PARTS = {
    "TABLES": [style, to_markdown, to_latex, to_sql, read_html, excel, xlsxwriter, old_excel, numexpr, columns_on_disk,
               xml, xarray, rolling_with_numba, plotting, time_zones],
    "DOCUMENTS": [jinja2, tabulate, yaml, html5lib, markdown, docx, pptx, pdf],
    "NUMBERS": [numba, statsmodels, networkx],
    "PICTURES": [skimage, opencv, video, animation, ffmpeg, bokeh, altair, plotly],
    "REST": [nltk, pytest, aiohttp, sqlalchemy],
}
